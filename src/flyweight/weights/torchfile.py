"""The reader of PyTorch checkpoints (pytorch_model.bin): a zip archive, or the stream of pickles
and storages written before PyTorch 1.6.

Invariant: nothing is unpickled (see `opcodes`); every tensor is within its storage and every
storage within the file.  Format: PyTorch's torch/serialization.py.  Does not know which tensors a
model wants.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import shown
from flyweight.weights import ziparchive
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.mapped import MappedFile
from flyweight.weights.opcodes import MOST_PICKLE, PickledTensor, TorchStorage, read_object
from flyweight.weights.tensorinfo import Span

KINDS = {
    "FloatStorage": "f32", "HalfStorage": "f16", "BFloat16Storage": "bf16", "DoubleStorage": "f64",
    "LongStorage": "i64", "IntStorage": "i32", "ShortStorage": "i16", "CharStorage": "i8",
    "ByteStorage": "u8", "BoolStorage": "u8",
}  # fmt: skip
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the old stream's first two pickles
MOST_ENTRIES = 1 << 16  # tensors of one file


class StridedFile(MappedFile):
    """A file whose tensors may be transposed: their elements are in another order."""

    def read_rows(self, name: str, span: Span, start: int, stop: int) -> Rows:
        shape, _, count = self._find_range(name, span, start, stop)
        if not span.strides or not count:
            return super().read_rows(name, span, start, stop)
        item = span.nbytes // math.prod(span.shape)
        offset = span.offset + start * span.strides[0]
        dtype = np.dtype(f"u{item}")
        found = np.ndarray(shape, dtype, self.buffer, offset, span.strides).copy("C")
        reach = sum((n - 1) * step for n, step in zip(shape, span.strides, strict=True)) + item
        self.drop(offset, reach)
        return FORMATS[span.kind].parse(found.reshape(-1).view(np.uint8), shape)


@dataclass(frozen=True, slots=True)
class TorchFile:
    """`header` is how many of the first bytes tell one file from another; `spans` hold offsets into
    the file, and may share bytes (tied weights).
    """

    file: MappedFile
    header: int
    spans: dict[str, Span]


def read_torch(path: Path, faults: list[str] | None = None) -> TorchFile:
    """Maps a file and checks its pickle and every tensor; reads no tensor.  With `faults`, those of
    single tensors are added there, and the tensors left out.
    """
    file = StridedFile(path)
    try:
        if file.copy(0, min(4, file.size), "its beginning") == ziparchive.MAGIC:
            found, places, header = _read_archive(file)
        else:
            found, places, header = _read_stream(file)
        spans: dict[str, Span] = {}
        for name, tensor in _find_tensors(found, str(path), faults):
            try:
                spans[name] = _make_span(f"{path}: tensor {shown(name)}", tensor, places)
            except CheckpointError as error:
                _report_fault(str(error), faults)
    except CheckpointError:
        file.close()
        raise
    file.drop(0, file.size)
    return TorchFile(file, header, spans)


Places = dict[str, tuple[int, int]]  # a storage's key to its offset and bytes


def _report_fault(message: str, faults: list[str] | None) -> None:
    """A fault of one tensor, after which the others can still be read."""
    if faults is None:
        raise CheckpointError(message)
    faults.append(message)


def _read_archive(file: MappedFile) -> tuple[Any, Places, int]:
    """Object, storages and header of a zip archive: FOLDER/data.pkl, and FOLDER/data/KEY."""
    inside = ziparchive.list_members(file)
    pickles = [name for name in inside if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise CheckpointError(
            f"{file.path}: a zip archive with {len(pickles)} members FOLDER/data.pkl, "
            "where PyTorch writes one; this is not a PyTorch checkpoint"
        )
    offset, size = inside[pickles[0]]
    if size > MOST_PICKLE:
        raise CheckpointError(f"{file.path}: a pickle of {size} bytes; at most {MOST_PICKLE}")
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}byteorder" in inside:
        order = file.copy(*inside[f"{prefix}byteorder"], "the byte order")[:16]
        if order != b"little":
            raise CheckpointError(f"{file.path}: byte order {order!r}; little-endian files only")
    data = file.copy(offset, size, "the pickle")
    found = read_object(data, 0, str(file.path)).value
    stem = f"{prefix}data/"
    places = {n.removeprefix(stem): place for n, place in inside.items() if n.startswith(stem)}
    return found, places, min(offset + size, MOST_PICKLE)


def _read_stream(file: MappedFile) -> tuple[Any, Places, int]:
    """The same of the old format: five pickles one after the other (magic number, protocol,
    machine, object, keys), then every storage behind its number of elements.
    """
    where, data = str(file.path), file.copy(0, min(file.size, MOST_PICKLE), "the pickles")
    if data[:1] != b"\x80":
        raise CheckpointError(
            f"{where}: neither a zip archive nor the pickles of PyTorch's older format; "
            "this is not a PyTorch checkpoint"
        )
    magic = read_object(data, 0, where)
    protocol = read_object(data, magic.end, where) if magic.value == MAGIC else magic
    if (magic.value, protocol.value) != (MAGIC, PROTOCOL):
        raise CheckpointError(f"{where}: a pickle that is not a PyTorch checkpoint")
    machine = read_object(data, protocol.end, where)
    if not isinstance(machine.value, dict) or machine.value.get("little_endian") is not True:
        raise CheckpointError(f"{where}: not a little-endian file")
    found = read_object(data, machine.end, where)
    keys = read_object(data, found.end, where)
    if not isinstance(keys.value, list) or not all(isinstance(key, str) for key in keys.value):
        raise CheckpointError(f"{where}: the list of storages is {shown(keys.value)}")
    return found.value, _place_following(file, keys.value, found.storages, keys.end), keys.end


def _place_following(
    file: MappedFile, keys: list[str], storages: dict[str, TorchStorage], at: int
) -> Places:
    """The places of the storages in the old format: one after the other from byte `at` on."""
    places: Places = {}
    for key in keys:
        if key not in storages or key in places:
            raise CheckpointError(
                f"{file.path}: storage {shown(key)} is listed twice, or no tensor is in it"
            )
        count = int.from_bytes(file.copy(at, 8, f"storage {shown(key)}"), "little")
        size = count * storages[key].item
        file.copy(min(at + 8 + size, 1 << 63), 0, f"storage {shown(key)}")
        places[key] = at + 8, size
        at += 8 + size
    return places


def _find_tensors(
    found: Any, where: str, faults: list[str] | None
) -> Iterator[tuple[str, PickledTensor]]:
    """What the file holds: a dict of tensors by name, nothing else."""
    if not isinstance(found, dict):
        raise CheckpointError(f"{where}: holds {shown(found)}; a dict of tensors expected")
    if len(found) > MOST_ENTRIES:
        raise CheckpointError(f"{where}: {len(found)} tensors; at most {MOST_ENTRIES}")
    for name, value in found.items():
        if isinstance(name, str) and isinstance(value, PickledTensor):
            yield name, value
        else:
            kind = type(value).__name__
            _report_fault(
                f"{where}: {shown(name)} is of type {kind}; tensors by name expected", faults
            )


def _make_span(where: str, tensor: PickledTensor, places: Places) -> Span:
    """The place of a tensor."""
    storage, shape = tensor.storage, tensor.shape
    _check(where, storage, places)
    in_order, count = _is_contiguous(shape, tensor.strides), math.prod(shape)
    if not in_order and (len(shape) > 2 or _overlaps(shape, tensor.strides)):
        raise CheckpointError(
            f"{where}: shape {list(shape)} with strides {list(tensor.strides)}, whose elements are "
            "not in order; make it contiguous() and save it again"
        )
    last = sum((n - 1) * step for n, step in zip(shape, tensor.strides, strict=True))
    if tensor.offset + (count if in_order else last + 1) > storage.count:
        raise CheckpointError(
            f"{where}: shape {list(shape)} from element {tensor.offset} on reaches out of a "
            f"storage of {storage.count} elements"
        )
    offset = places[storage.key][0] + tensor.offset * storage.item
    steps = () if in_order else tuple(step * storage.item for step in tensor.strides)
    return Span(shape, KINDS[storage.type], offset, count * storage.item, strides=steps)


def _check(where: str, storage: TorchStorage, places: Places) -> None:
    needed = storage.count * storage.item
    if storage.key not in places:
        raise CheckpointError(f"{where}: its storage {shown(storage.key)} is not in the file")
    if places[storage.key][1] != needed:
        raise CheckpointError(
            f"{where}: its storage {shown(storage.key)} has {places[storage.key][1]} bytes, "
            f"{storage.count} elements of {storage.type} need {needed}"
        )


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor's elements are one after the other, the last axis first."""
    step = 1
    for n, given in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and given != step and 0 not in shape:
            return False
        step *= n
    return True


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two indices name one element: an axis steps by less than those within it reach."""
    reach = 1
    for step, n in sorted(zip(strides, shape, strict=True)):
        if n != 1 and step < reach:
            return True
        reach += (n - 1) * step
    return False
