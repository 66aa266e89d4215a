"""A Hugging Face model folder: config.json, optional generation_config.json, one or several files
of weights: safetensors, or PyTorch's pytorch_model.bin.

Invariant: with an index, the index and the files name exactly the same tensors, and no file outside
the folder is opened.

gpt-oss keeps MXFP4 in two tensors of bytes, codes in `NAME_blocks` and exponents in `NAME_scales`:
such a pair is one tensor `NAME_blocks` of kind mxfp4 and shape [E, N, K]; other bytes stay bytes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import E2M1, BlockRows, GroupedWeight
from flyweight.validation.untrusted import read_json, shown
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.safetensors import SafetensorsFile, read_safetensors
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.weights.torchfile import TorchFile, read_torch
from flyweight.wire import U8

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32


def pair_tensors(tensors: Mapping[str, TensorInfo], where: str) -> dict[str, TensorInfo]:
    """The tensors with every pair of bytes as one.  Raises `CheckpointError`."""
    found: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        if info.kind == "u8" and name.endswith(BLOCKS):
            found[name] = _make_pair(info, tensors.get(name_scales(name)), where)
        elif not (name.endswith(SCALES) and name.removesuffix(SCALES) + BLOCKS in tensors):
            found[name] = info
    return found


def name_scales(name: str) -> str:
    """The scales' name, of the blocks'."""
    return name.removesuffix(BLOCKS) + SCALES


def _make_pair(blocks: TensorInfo, scales: TensorInfo | None, where: str) -> TensorInfo:
    """[E, N, K/32, 16] and [E, N, K/32] -> [E, N, K]."""
    whole = len(blocks.shape) == 4 and blocks.shape[3] == GROUP // 2
    if scales is None or not whole or (scales.shape, scales.kind) != (blocks.shape[:3], "u8"):
        found = "missing" if scales is None else f"{scales.kind} {list(scales.shape)}"
        raise CheckpointError(
            f"{where}: {shown(blocks.name)} is {list(blocks.shape)} and its scales are {found}; "
            f"[E, N, K/{GROUP}, {GROUP // 2}] and [E, N, K/{GROUP}] of bytes expected"
        )
    experts, rows, groups = blocks.shape[:3]
    return TensorInfo(blocks.name, (experts, rows, groups * GROUP), "mxfp4")


def join(blocks: U8, scales: U8) -> GroupedWeight:
    """Rows of both, [N, K/2] and [N, K/32]: each byte holds two neighbours, the low half first; an
    exponent of 127 means 1, as in ggml's blocks.
    """
    codes = np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(len(blocks), -1)
    return GroupedWeight(codes.shape, 4, GROUP, codes, scales, values=E2M1)


MOST_FILES = 4096
TensorFile = SafetensorsFile | TorchFile


@dataclass(frozen=True, slots=True)
class Container:
    """How the files of one kind are named, and read."""

    name: str
    single: str
    index: str
    suffix: str
    read: Callable[[Path], TensorFile]


SAFETENSORS = Container(
    "safetensors",
    "model.safetensors",
    "model.safetensors.index.json",
    ".safetensors",
    read_safetensors,
)
TORCH = Container(
    "pt", "pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", read_torch
)  # vLLM's name for them


class FolderCheckpoint:
    """A `Checkpoint` of `files`, or of what the folder's index or single file says."""

    converted = False

    def __init__(
        self, path: Path, files: tuple[str, ...] = (), container: Container = SAFETENSORS
    ) -> None:
        self.path, self._container = path, container
        if not (path / "config.json").is_file():
            raise CheckpointError(
                f"{path / 'config.json'}: missing; it says what kind of model this is"
            )
        self.config = read_json(path / "config.json")
        extra = path / "generation_config.json"
        self.generation: dict[str, Any] = read_json(extra) if extra.is_file() else {}
        self.eos_ids = _end_ids(self.config, self.generation, path)
        self._files: dict[str, TensorFile] = {}
        self._file_of: dict[str, TensorFile] = {}
        try:
            alone = (path / container.single).is_file() or not (path / container.index).is_file()
            if files or alone:
                self._open(files or (_find_single(path, container),))
            else:
                self._open_index()
        except CheckpointError:
            self.close()
            raise
        tensors = {
            name: TensorInfo(name, file.spans[name].shape, file.spans[name].kind)
            for name, file in self._file_of.items()
        }
        self.tensors = pair_tensors(tensors, str(path))

    @property
    def format(self) -> str:
        return self._container.name

    @property
    def tokenizer_source(self) -> Path:
        return self.path

    @property
    def fingerprint(self) -> str:
        """Hash of the config, and of every file's header, size and samples; paths and times do not
        count.
        """
        found = blake2b((self.path / "config.json").read_bytes(), digest_size=16)
        for _, file in sorted(self._files.items()):
            found.update(file.file.compute_digest(file.header))
        return found.hexdigest()

    @property
    def stamps(self) -> tuple[int, ...]:
        return tuple(file.file.stamp for _, file in sorted(self._files.items()))

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        raise AssertionError("neither safetensors nor PyTorch's files hold blocks")

    def read(self, name: str, start: int, stop: int) -> Rows:
        if self.tensors[name].kind == "mxfp4":
            scales = self._read_bytes(name_scales(name), start, stop)
            return join(self._read_bytes(name, start, stop), scales)
        file = self._file_of[name]
        if file.spans[name].kind not in FORMATS:
            kind = file.spans[name].kind
            raise CheckpointError(
                f"{self.path}: tensor {shown(name)} is {kind}, which is not a weight"
            )
        return file.file.read_rows(name, file.spans[name], start, stop)

    def _read_bytes(self, name: str, start: int, stop: int) -> U8:
        """Rows of MXFP4's blocks or scales: the two leading axes are rows, the rest their bytes."""
        file, span = self._file_of[name].file, self._file_of[name].spans[name]
        row = math.prod(span.shape[2:])
        offset, count = span.offset + start * row, (stop - start) * row
        found = np.frombuffer(file.copy(offset, count, name), np.uint8)
        file.drop(offset, count)
        return found.reshape(stop - start, row)

    def close(self) -> None:
        for file in self._files.values():
            file.file.close()

    def _open(self, names: tuple[str, ...]) -> None:
        for name in names:
            file = self._files[name] = self._container.read(self.path / name)
            for tensor in file.spans:
                if tensor in self._file_of:
                    raise CheckpointError(
                        f"{self.path / name}: tensor {shown(tensor)} is in another file too"
                    )
                self._file_of[tensor] = file

    def _open_index(self) -> None:
        """Opens every file the index names, and holds the index to what they contain."""
        where = self.path / self._container.index
        listed = read_json(where).get("weight_map")
        if (
            not isinstance(listed, dict)
            or not listed
            or not all(isinstance(f, str) for f in listed.values())
        ):
            raise CheckpointError(f"{where}: weight_map must map tensor names to file names")
        files = sorted(set(listed.values()))
        if len(files) > MOST_FILES:
            raise CheckpointError(f"{where}: {len(files)} files; at most {MOST_FILES}")
        for name in files:
            _check_name(name, self._container.suffix, where)
        self._open(tuple(files))
        for tensor, name in listed.items():
            if tensor not in self._files[name].spans:
                raise CheckpointError(
                    f"{where}: {shown(tensor)} is not in {name}, where the index has it"
                )
        unlisted = sorted(self._file_of.keys() - listed.keys())
        if unlisted:
            raise CheckpointError(
                f"{where}: {len(unlisted)} tensors are in the files but not in the index, "
                f"the first {shown(unlisted[0])}"
            )


def open_single_file(path: Path, container: Container = SAFETENSORS) -> FolderCheckpoint:
    """One file of weights, with its config.json beside it."""
    return FolderCheckpoint(path.parent, (path.name,), container)


def _find_single(path: Path, container: Container) -> str:
    """The folder's only file of the kind, or the one with the usual name."""
    if (path / container.single).is_file():
        return container.single
    found = sorted(p.name for p in path.glob(f"*{container.suffix}"))
    if len(found) != 1:
        some = ", ".join(found[:5]) or "none"
        raise CheckpointError(
            f"{path}: which {container.suffix.removeprefix('.')} file? found {some}; "
            f"looked for {container.single} or {container.index}"
        )
    return found[0]


def _check_name(name: str, suffix: str, where: Path) -> None:
    """A shard is a plain file name of this folder: no separators, no way out."""
    if (
        not name.endswith(suffix)
        or name.startswith(".")
        or any(c in name for c in "/\\:")
        or not name.isprintable()
    ):
        raise CheckpointError(f"{where}: {shown(name)} is not the plain name of a {suffix} file")


def _end_ids(config: dict[str, Any], generation: dict[str, Any], path: Path) -> tuple[int, ...]:
    found: set[int] = set()
    for file, source in (("config.json", config), ("generation_config.json", generation)):
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise CheckpointError(
                f"{path / file}: eos_token_id = {shown(value)}; "
                "a token id or a list of them expected"
            )
        found.update(i for i in ids if i >= 0)  # -1 says there is none
    return tuple(sorted(found))
