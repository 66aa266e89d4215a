"""Draft heads on disk: a folder with config.json and one file of tensors, safetensors or PyTorch's.

Invariant: opening reads headers only; heads of another method, or made for another base model by
its shapes or its fingerprint, are refused before a tensor is read.  Does not know which tensors a
method wants.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.draft.headmethod import find_head_method
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.ops.base import to_bf16_bits
from flyweight.spec import ModelSpec
from flyweight.speculation_methods import BUNDLED_HEADS, DRAFT_INSIDE, SETTING
from flyweight.validation.untrusted import read_json, shown, spell
from flyweight.weights.formats.values import to_f32
from flyweight.weights.mapped import MappedFile
from flyweight.weights.safetensors import read_safetensors
from flyweight.weights.tensorinfo import Span
from flyweight.weights.torchfile import read_torch
from flyweight.wire import F32, I64

ASSETS = Path(__file__).parents[1] / "assets"
CONFIG = "config.json"
# what `flyweight train-heads` writes about its base
FINGERPRINT, BASE = "base_fingerprint", "base_model"
NAMES = (
    "model.safetensors",
    "medusa_lm_head.safetensors",
    "pytorch_model.bin",
    "medusa_lm_head.pt",
)
FLOATS = ("f32", "f16", "bf16")
INTEGERS = {"i64": "<i8", "i32": "<i4"}


def find_heads(name: str) -> Path:
    """A folder by its path, or bundled heads by their name.  Raises `ConfigError`."""
    path, key = Path(name).expanduser(), f"{SETTING}.model"
    if path.is_dir():
        return path
    if name in BUNDLED_HEADS:
        return ASSETS / name
    if path.is_file() or (ASSETS / f"{name}.gguf").is_file():
        hint = 'nearest valid: "method": "draft_model"'
        raise ConfigError("is a model, no folder of heads", key, value=name, hint=hint)
    near = nearest(name, [*BUNDLED_HEADS, DRAFT_INSIDE])
    inside = f"{', '.join(BUNDLED_HEADS)}; with method draft_model {DRAFT_INSIDE}{near}"
    allowed = f"a folder of heads, a name on the Hub, {inside}"
    raise ConfigError("does not exist", key, value=name, allowed=allowed)


def read_head_method(path: Path) -> str:
    """The method that the heads in a folder are for; "" where that is not known."""
    try:
        folder = HeadFolder(path)
    except CheckpointError:  # tensors in other files, or none yet
        try:
            return find_head_method(read_json(path / CONFIG), {})
        except CheckpointError:
            return ""
    folder.close()
    return find_head_method(folder.config, folder.shapes)


class HeadFolder:
    """Opened heads; `shapes` by tensor name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / CONFIG).is_file():
            raise CheckpointError(f"{path}: no {CONFIG}; draft heads are a folder that has one")
        self.config: Mapping[str, Any] = read_json(path / CONFIG)
        found = next((path / name for name in NAMES if (path / name).is_file()), None)
        if found is None:
            raise CheckpointError(
                f"{path}: no tensors of draft heads; looked for {', '.join(NAMES)}"
            )
        self._file: MappedFile
        self._spans: Mapping[str, Span]
        opened = read_safetensors(found) if found.suffix == ".safetensors" else read_torch(found)
        self._file, self._spans = opened.file, opened.spans
        self.shapes = {name: span.shape for name, span in self._spans.items()}

    def list_kinds(self, names: Iterable[str]) -> dict[str, list[tuple[tuple[int, ...], str]]]:
        """Shape and kind of those of the tensors that are there, for the memory plan."""
        spans = {name: self._spans[name] for name in names if name in self._spans}
        return {
            f"drafter {name}": [(x.shape, "bf16" if x.kind == "i8" else x.kind)]
            for name, x in spans.items()
        }

    def check_tensors(self, names: Iterable[str], unused: Collection[str], what: str) -> None:
        """Raises `CheckpointError` for one of `names` that cannot be read, and for a tensor that is
        neither theirs nor `unused`.
        """
        known = set(names)
        scales = {f"{name}_scale" for name in known}
        strays = sorted(set(self.shapes) - known - scales - set(unused))
        if strays:
            raise CheckpointError(f"{self.path}: tensor {shown(strays[0])} is none of {what}")
        for name in sorted(known & set(self.shapes)):
            self._check_kind(name)

    def _check_kind(self, name: str) -> None:
        span = self._spans[name]
        if span.kind == "i8" and f"{name}_scale" in self._spans:
            self.check_shape(f"{name}_scale", (span.shape[0], 1))
        elif span.kind not in FLOATS:
            raise CheckpointError(
                f"{self.path}: tensor {shown(name)} is {span.kind}; known: {', '.join(FLOATS)}"
            )

    def read(self, name: str) -> Any:
        """A tensor of floats as the file has it: float32, float16, or bfloat16 bits as uint16.
        Codes of 8 bits with a scale a row are bfloat16 when read.
        """
        self._check_kind(name)
        span = self._spans[name]
        if span.kind == "i8":
            raw = self._file.copy(span.offset, span.nbytes, name)
            codes = np.frombuffer(raw, np.int8).reshape(span.shape)
            return to_bf16_bits(codes * to_f32(self.read(f"{name}_scale")).reshape(-1, 1))
        rows = self._file.read_rows(name, span, 0, span.shape[0])
        if not np.isfinite(to_f32(rows)).all():  # type: ignore[arg-type]
            raise CheckpointError(f"{self.path}: tensor {shown(name)} holds NaN or infinity")
        return rows

    def read_integers(self, name: str) -> I64:
        """A tensor of whole numbers.  Raises `CheckpointError` where it is none."""
        span = self._spans[name]
        if span.kind not in INTEGERS or span.strides:
            raise CheckpointError(
                f"{self.path}: tensor {shown(name)} is {span.kind}; known: {', '.join(INTEGERS)}"
            )
        raw = self._file.copy(span.offset, span.nbytes, name)
        found: I64 = np.frombuffer(raw, INTEGERS[span.kind]).reshape(span.shape).astype(np.int64)
        return found

    def read_vector(self, name: str) -> F32:
        return to_f32(self.read(name))

    def check_shape(self, name: str, *allowed: tuple[int, ...]) -> None:
        """Raises `CheckpointError` for a tensor that is not there, or has another shape."""
        found = self.shapes.get(name)
        if found is None:
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}")
        if found not in allowed:
            expected = " or ".join(str(list(shape)) for shape in allowed)
            raise CheckpointError(
                f"{self.path}: tensor {shown(name)} is {list(found)}, this model needs {expected}; "
                "the heads were trained for another one"
            )

    def check_matrix(self, name: str, shape: tuple[int, int]) -> None:
        """`check_shape` of a matrix, and of its bias where it has one."""
        self.check_shape(name, shape)
        if name_bias(name) in self.shapes:
            self.check_shape(name_bias(name), shape[:1])

    def check_method(self, method: str) -> None:
        """Raises `ConfigError` for heads of another method."""
        found = find_head_method(self.config, self.shapes)
        if found and found != method:
            held = "a whole model" if found == "draft_model" else f"heads for method {found}"
            raise ConfigError(
                f"does not fit {self.path}, which holds {held}",
                f"{SETTING}.method",
                value=method,
                hint=f'nearest valid: "method": "{found}"',
            )

    def check_base(self, spec: ModelSpec, fingerprint: str, name: str = "") -> None:
        """Raises `CheckpointError` for heads whose config says another base than the model of this
        `name`.
        """
        for key, own in (("hidden_size", spec.hidden), ("vocab_size", spec.vocab)):
            said = self.config.get(key, own)
            if said != own:
                raise CheckpointError(
                    f"{self.path / CONFIG}: {key} = {spell(said)}, this model has {own}; "
                    "the heads were trained for another one"
                )
        said = self.config.get(FINGERPRINT, fingerprint)
        if said != fingerprint:
            base = f" {spell(self.config[BASE])}" if BASE in self.config else " another model"
            raise CheckpointError(
                f"{self.path / CONFIG}: the heads were trained for{base}, {FINGERPRINT} = "
                f"{spell(said)}; this model{f' {shown(name)}' * bool(name)} has {fingerprint}; "
                "train heads for it with `flyweight train-heads`, or, if it is a quantised copy of "
                f"that base, remove {FINGERPRINT} from {CONFIG}"
            )

    def close(self) -> None:
        self._file.close()


def name_bias(weight: str) -> str:
    """The bias of a matrix."""
    return weight.removesuffix("weight") + "bias"
