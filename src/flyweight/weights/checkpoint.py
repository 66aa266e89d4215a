"""A model on disk, whatever its container: one config, one set of tensors under Hugging Face names,
rows on demand.

Invariant: opening reads headers only; `read` copies just the requested rows. Does not know which
tensors a model wants.
"""

import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flyweight.errors import CheckpointError, ConfigError
from flyweight.ops.grouped import BlockRows
from flyweight.weights.folder import SAFETENSORS, TORCH, FolderCheckpoint, open_single_file
from flyweight.weights.formats import Rows
from flyweight.weights.formats.claims import MatrixScheme
from flyweight.weights.gguf import MAGIC
from flyweight.weights.ggufmodel import GgufCheckpoint, find_first_part
from flyweight.weights.tensorinfo import TensorInfo

__all__ = ["Checkpoint", "TensorInfo", "find_format", "choose_format", "open_checkpoint"]

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
CONVERT = (  # for a folder that transformers reads
    'python -c "import sys, transformers as t; '
    "[c.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) "
    'for c in (t.AutoModelForCausalLM, t.AutoTokenizer)]"'
)
LOOKED_FOR = (
    "a .gguf file, a folder with config.json and *.safetensors or pytorch_model.bin, "
    "or a .safetensors or .bin file next to its config.json"
)


class Checkpoint(Protocol):
    """`config` has config.json's keys; `eos_ids` are the end tokens of all files;
    `tokenizer_source` is the folder, or GGUF's metadata. `converted`: tensors are as GGUF's
    converters leave them, not as published; `format` is gguf, safetensors or pt (PyTorch's).
    `quantisation` is the method by which several tensors make a matrix, "" where none do; `joined`
    are the names of those matrices; `opened`
    of its matrices are bfloat16 when read, as no kernel reads their codes; `schemes` are how its
    matrices are quantised, each once.
    `fingerprint` hashes the files' headers, sizes and samples, without a passport; `stamps` are the
    times they were last changed, `compute_digests` hashes every byte of them.  `passport_path` is
    the file that a passport is in, or would be.
    """

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def generation(self) -> dict[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def converted(self) -> bool: ...
    @property
    def format(self) -> str: ...
    @property
    def quantisation(self) -> str: ...
    @property
    def joined(self) -> frozenset[str]: ...
    @property
    def opened(self) -> int: ...
    @property
    def schemes(self) -> tuple[MatrixScheme, ...]: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def tokenizer_source(self) -> Path | Mapping[str, object]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def stamps(self) -> tuple[int, ...]: ...

    def compute_digests(self) -> tuple[bytes, ...]: ...

    @property
    def passport_path(self) -> Path: ...

    def read_passport(self) -> bytes:
        """The JSON of the quality passport; empty where there is none."""
        ...

    def read(self, name: str, start: int, stop: int) -> Rows:
        """Rows [start, stop) of a tensor (elements of a vector), canonical: `GroupedWeight`, or an
        array of float32, float16, or uint16 holding bfloat16 bits.
        """
        ...

    def read_blocks(self, name: str, start: int, stop: int) -> BlockRows:
        """The same rows as the file has them, of a kind that is whole blocks."""
        ...

    def close(self) -> None: ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a model by path; `CheckpointError` names what is wrong, or what was looked for."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _open_folder(path)
        if not stat.S_ISREG(mode):  # opening a pipe would block
            raise CheckpointError(f"{path}: not a regular file; looked for {LOOKED_FOR}")
        with open(path, "rb") as file:
            magic = file.read(len(MAGIC))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: {reason}; looked for {LOOKED_FOR}") from None
    if magic == MAGIC or path.suffix == ".gguf":
        return GgufCheckpoint(path)
    if path.suffix == ".safetensors":
        return open_single_file(path)
    if path.suffix == TORCH.suffix:
        return open_single_file(path, TORCH)
    if path.name == TORCH.index:
        return FolderCheckpoint(path.parent, container=TORCH)
    if path.suffix in PICKLES:
        raise _refuse_pickle(path)
    raise CheckpointError(f"{path}: not a model file; looked for {LOOKED_FOR}")


def find_format(path: Path) -> str:
    """The `format` of what `open_checkpoint` would open; reads no file."""
    if path.is_dir():
        names = {p.name for p in path.iterdir()}
        if any(n.endswith((".safetensors", ".safetensors.index.json")) for n in names):
            return SAFETENSORS.name
        return TORCH.name if {TORCH.single, TORCH.index} & names else "gguf"
    if path.name == TORCH.index:
        return TORCH.name
    return {SAFETENSORS.suffix: SAFETENSORS.name, TORCH.suffix: TORCH.name}.get(path.suffix, "gguf")


def choose_format(path: Path, wanted: str) -> Path:
    """What to open for weights of the format `wanted`, "auto" for any: the path, or in a folder
    with safetensors PyTorch's file or index.  Raises `ConfigError` where there are none.
    """
    kind = find_format(path)
    if wanted in ("auto", kind):
        return path
    found = [path / name for name in (TORCH.single, TORCH.index) if (path / name).is_file()]
    if wanted == TORCH.name and found:
        return found[0]
    raise ConfigError(
        f", and {path.name} holds {kind}; leave it (or quantization) out, or give a "
        f"model whose files are {wanted}",
        "load_format",
        value=wanted,
    )


def _open_folder(path: Path) -> Checkpoint:
    names = sorted(p.name for p in path.iterdir())
    kind = find_format(path)
    if kind != "gguf":
        return FolderCheckpoint(path, container=TORCH if kind == TORCH.name else SAFETENSORS)
    pickles = [n for n in names if n.endswith(PICKLES)]
    if pickles:
        raise _refuse_pickle(path / pickles[0])
    ggufs = [n for n in names if n.endswith(".gguf")]
    if first := find_first_part(ggufs):
        return GgufCheckpoint(path / first)
    if ggufs:
        raise CheckpointError(
            f"{path}: this folder holds GGUF files; name one, such as {path / ggufs[0]}"
        )
    raise CheckpointError(f"{path}: no model here; looked for {LOOKED_FOR}")


def _refuse_pickle(path: Path) -> CheckpointError:
    folder = str(path.parent)
    paths = f"{shlex.quote(folder)} {shlex.quote(folder + '-safetensors')}"
    return CheckpointError(
        f"{path}: a pickle in an unknown form, and reading one can run any code, so it is refused; "
        f"of PyTorch's files {TORCH.single} and its parts are read, as data; take those, the "
        "model's safetensors or GGUF files where its publisher has them, or, if you trust this "
        f"file, convert it: {CONVERT} {paths}"
    )
