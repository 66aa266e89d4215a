"""What is wrong with a model's files, all of it: the faults of single tensors in every header, and
numbers that are none.

Invariant: reads what the loader would read, by the same readers, and holds no more of it at a time.
Does not know which tensors a model wants.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import GroupedWeight
from flyweight.validation.untrusted import shown
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.folder import TORCH
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.gguf import MAGIC, read_gguf
from flyweight.weights.ggufmodel import PART
from flyweight.weights.safetensors import read_safetensors
from flyweight.weights.torchfile import read_torch

LOOK = 8 << 20  # bytes of a file looked at together
BF16_EXPONENT = 0x7F80  # all ones: infinity, or no number

Progress = Callable[[int, int], None]


def find_header_faults(path: Path) -> list[str]:
    """Every fault of every file's header.  Where one stops its reader, it is that file's last."""
    found: list[str] = []
    for file in _list_files(path):
        try:
            if _is_gguf(file):
                faults: list[str] = []
                read_gguf(file, faults).file.close()
                found += [f"{file}: {fault}" for fault in faults]
            elif file.suffix == TORCH.suffix:
                read_torch(file, found).file.close()
            else:
                read_safetensors(file, found).file.close()
        except CheckpointError as error:
            found.append(str(error))
    return found


def find_value_faults(
    checkpoint: Checkpoint, progress: Progress | None = None, unused: Sequence[str] = ()
) -> Iterator[str]:
    """Every tensor with values that are not finite, and how many; for blocks of quantised ones
    their scales are looked at.  Tensors that fit a pattern of `unused` are not: the masks of older
    files hold infinities.
    """
    infos = [
        info
        for name, info in checkpoint.tensors.items()
        if not any(fnmatchcase(name, known) for known in unused) and info.kind in FORMATS
    ]
    total = sum(FORMATS[info.kind].count_bytes(info.shape) for info in infos)
    done = 0
    for info in infos:
        shape = info.shape or (1,)
        if len(shape) > 2:  # leading axes count as rows
            shape = (math.prod(shape[:-1]), shape[-1])
        row = max(1, FORMATS[info.kind].count_bytes(shape) // max(1, shape[0]))
        step = max(1, LOOK // row)
        bad, first = 0, -1
        for start in range(0, shape[0], step):
            stop = min(start + step, shape[0])
            try:
                rows = _find_odd_rows(checkpoint.read(info.name, start, stop))
            except CheckpointError as error:  # of a quantised folder, whose parsers look first
                yield str(error)
                break
            if len(rows) and first < 0:
                first = start + int(rows[0])
            bad += len(rows)
            done += row * (stop - start)
            if progress is not None:
                progress(done, total)
        if bad:
            what = "scales" if FORMATS[info.kind].quantised else "values"
            yield (
                f"tensor {shown(info.name)} has {what} that are not finite in {bad} of "
                f"{shape[0]} rows, the first in row {first}"
            )


def _find_odd_rows(rows: Rows) -> NDArray[np.intp]:
    """Numbers of the rows in which something is not finite."""
    if not isinstance(rows, GroupedWeight):
        odd = _is_not_finite(rows)
        return np.flatnonzero(odd.reshape(len(odd), -1).any(axis=1))
    parts = (rows.scales, rows.super_scales, rows.mins, rows.super_mins, rows.zeros)
    odd = np.zeros(rows.shape[0], np.bool_)
    for part in parts:
        if part is not None and part.dtype.kind == "f":
            odd |= (~np.isfinite(part)).any(axis=1)
    return np.flatnonzero(odd)


def _is_not_finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype == np.uint16:  # bfloat16's bits
        values = (values & BF16_EXPONENT) != BF16_EXPONENT
    else:
        values = np.isfinite(values)
    return ~values


def _list_files(path: Path) -> list[Path]:
    """The model's files of weights, every part of a split one, as far as they are regular."""
    found = [path]
    if path.is_dir():
        kinds = ("*.safetensors", f"pytorch_model*{TORCH.suffix}", "*.gguf")
        found = next((files for kind in kinds if (files := sorted(path.glob(kind)))), [])
    elif path.name == TORCH.index:
        found = sorted(path.parent.glob(f"pytorch_model*{TORCH.suffix}"))
    elif PART.fullmatch(path.name):
        mine = _split_of(path)
        found = sorted(file for file in path.parent.iterdir() if _split_of(file) == mine)
    return [file for file in found if file.is_file()]


def _split_of(file: Path) -> tuple[str, str] | None:
    """Which split model a file is a part of: its name, and how many parts there are."""
    part = PART.fullmatch(file.name)
    return None if part is None else (part[1], part[3])


def _is_gguf(file: Path) -> bool:
    if file.suffix == ".gguf":
        return True
    with open(file, "rb") as start:
        return start.read(len(MAGIC)) == MAGIC
