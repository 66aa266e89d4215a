"""A Hugging Face model folder: config.json, optional generation_config.json, one or several files
of weights: safetensors, or PyTorch's pytorch_model.bin.

Invariant: with an index, the index and the files name exactly the same tensors, and no file outside
the folder is opened.

Where the config says that the model is quantised, the tensors of each matrix are one (see
`formats.joined`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.ops.grouped import BlockRows
from flyweight.passport import FILE, MOST_BYTES
from flyweight.validation.untrusted import read_bytes, read_json, shown
from flyweight.weights.formats import FORMATS, Rows
from flyweight.weights.formats.claims import Claim, Folder, MatrixScheme
from flyweight.weights.formats.joined import claim_matrices, find_method, join_tensors
from flyweight.weights.quantised import SIDE_FILES, FilePart, read_matrix, read_quantisation
from flyweight.weights.safetensors import SafetensorsFile, read_safetensors
from flyweight.weights.tensorinfo import TensorInfo
from flyweight.weights.torchfile import TorchFile, read_torch

MOST_FILES = 4096
SAME_METHODS = {"modelopt_fp4": "modelopt", "intel/auto-round": "auto-round"}  # by other names
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
        quantised = read_quantisation(self.config, path)
        if quantised:
            self.config["quantization_config"] = quantised
        extra = path / "generation_config.json"
        self.generation: dict[str, Any] = read_json(extra) if extra.is_file() else {}
        self.eos_ids = _end_ids(self.config, self.generation, path)
        self._files: dict[str, TensorFile] = {}
        self._file_of: dict[str, TensorFile] = {}
        self._claims: dict[str, Claim] = {}
        try:
            alone = (path / container.single).is_file() or not (path / container.index).is_file()
            if files or alone:
                self._open(files or (_find_single(path, container),))
            else:
                self._open_index()
            tensors = {
                name: TensorInfo(name, file.spans[name].shape, file.spans[name].kind)
                for name, file in self._file_of.items()
            }
            folder = Folder(quantised, tensors, str(path), self._part, self._list_metadata())
            self._method, self._claims = find_method(folder), claim_matrices(folder)
        except CheckpointError:
            self.close()
            raise
        self.tensors = join_tensors(tensors, self._claims)

    @property
    def format(self) -> str:
        return self._container.name

    @property
    def quantisation(self) -> str:
        return self._method if self._claims else ""

    @property
    def joined(self) -> frozenset[str]:
        return frozenset(self._claims)

    @property
    def opened(self) -> int:
        return sum(claim.kind == "bf16" for claim in self._claims.values())

    @property
    def schemes(self) -> tuple[MatrixScheme, ...]:
        return tuple(dict.fromkeys(claim.scheme for claim in self._claims.values()))

    @property
    def tokenizer_source(self) -> Path:
        return self.path

    @property
    def fingerprint(self) -> str:
        """Hash of the config, and of every file's header, size and samples; paths and times do not
        count.
        """
        found = blake2b((self.path / "config.json").read_bytes(), digest_size=16)
        for name in SIDE_FILES:
            if (self.path / name).is_file():
                found.update((self.path / name).read_bytes())
        for _, file in sorted(self._files.items()):
            found.update(file.file.compute_digest(file.header))
        return found.hexdigest()

    @property
    def stamps(self) -> tuple[int, ...]:
        return tuple(file.file.stamp for _, file in sorted(self._files.items()))

    def compute_digests(self) -> tuple[bytes, ...]:
        """Of every file, in the order of their names."""
        return tuple(file.file.compute_whole_digest() for _, file in sorted(self._files.items()))

    @property
    def passport_path(self) -> Path:
        return self.path / FILE

    def read_passport(self) -> bytes:
        place = self.passport_path
        return read_bytes(place, MOST_BYTES) if place.exists() else b""

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        raise AssertionError("neither safetensors nor PyTorch's files hold blocks")

    def read(self, name: str, start: int, stop: int) -> Rows:
        if name in self._claims:
            claim = self._claims[name]
            what = f"{self.path}: tensor {shown(name)}"
            return read_matrix(claim, self._parts_of(claim), start, stop, what)
        file = self._file_of[name]
        if file.spans[name].kind not in FORMATS:
            kind = file.spans[name].kind
            raise CheckpointError(
                f"{self.path}: tensor {shown(name)} is {kind}, which is not a weight"
            )
        return file.file.read_rows(name, file.spans[name], start, stop)

    def _parts_of(self, claim: Claim) -> dict[str, FilePart]:
        return {role: self._part(name) for role, name in claim.parts.items()}

    def _part(self, name: str) -> FilePart:
        file = self._file_of[name]
        return FilePart(name, file.file, file.spans[name])

    def _list_metadata(self) -> dict[str, str]:
        """The free text of all headers."""
        files = [f for f in self._files.values() if isinstance(f, SafetensorsFile)]
        return {key: text for file in files for key, text in file.metadata.items()}

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
    """One file of weights, with the config.json next to it."""
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
