"""What each matrix of a model becomes: bits, groups and grid; and `--layer-precision`, which names
them layer by layer.

Invariant: every layer has exactly one precision.  Knows no file format and no method.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from flyweight.errors import ConfigError, nearest
from flyweight.weights.formats import FORMATS

DENSE = {
    "fp32": "f32", "f32": "f32", "float32": "f32", "fp16": "f16", "f16": "f16", "float16": "f16",
    "bf16": "bf16", "bfloat16": "bf16",
}  # fmt: skip
WHOLE = {"int8": 8, "int4": 4, "int3": 3, "int2": 2}
BITS = (2, 3, 4, 8)
NAMED = ("lm_head", "embed")  # matrices outside of layers, by their names in `--layer-precision`
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Precision:
    """How a matrix is stored: whole numbers of `bits` with a scale for each `group` columns (-1: a
    row), around a fixed middle or (not `symmetric`) a zero point a group; `activations` is
    "dynamic" or "static" where products round them to int8.  `dense` is a float kind in place of
    all that ("same": the file's own); `type` a type of GGUF.
    """

    bits: int = 16
    group: int = -1
    symmetric: bool = True
    activations: str = ""
    dense: str = ""
    type: str = ""

    @property
    def quantised(self) -> bool:
        return not self.dense

    def count_group(self, columns: int) -> int:
        """Columns that share a scale, of a matrix with so many."""
        return columns if self.group == -1 else self.group

    def __str__(self) -> str:
        if self.dense or self.type:
            return self.dense or self.type
        size = "row" if self.group == -1 else f"g{self.group}"
        return f"int{self.bits} {size}{'' if self.symmetric else ' asymmetric'}"


KEEP = Precision(dense="same")


def parse_precision(word: str, base: Precision) -> Precision:
    """`int8`, `fp16`, ...: a precision in the manner of `base`.  Raises `ConfigError`."""
    word = word.strip().lower()
    if word in DENSE:
        return Precision(dense=DENSE[word])
    if word in WHOLE:
        return replace(base, bits=WHOLE[word], dense="", type="")
    known, gguf = [*WHOLE, "fp32", "fp16", "bf16"], word in set(FORMATS)
    raise ConfigError(
        "is not valid",
        "layer_precision",
        value=word,
        allowed=", ".join(known) + ("" if gguf else nearest(word, known)),
        hint="types of GGUF need --format gguf" if gguf else "",
    )


@dataclass(frozen=True, slots=True)
class NamedPrecision:
    """What `--layer-precision` says: of some layers by number, and of matrices outside of layers
    by name (`NAMED`).
    """

    layers: Mapping[int, Precision]
    tops: Mapping[str, Precision]

    @classmethod
    def parse(cls, text: str, layers: int, read: Callable[[str], Precision]) -> "NamedPrecision":
        """Raises `ConfigError` for a layer that is named twice or is none of so many."""
        found: dict[int, Precision] = {}
        named: dict[str, Precision] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            where, equals, word = (side.strip() for side in part.partition("="))
            if not equals:
                raise ConfigError(
                    f"has {part!r}; LAYERS=PRECISION expected, such as 0-3=int8", "layer_precision"
                )
            precision = read(word)
            if where in NAMED:
                if where in named:
                    raise ConfigError(f"names {where} twice", "layer_precision")
                named[where] = precision
                continue
            for i in _list_layers(where, layers):
                if i in found:
                    raise ConfigError(f"names layer {i} twice", "layer_precision")
                found[i] = precision
        return cls(found, named)

    def check_whole(self, layers: int, hint: str = "") -> None:
        """Raises `ConfigError` where one of so many layers is missing."""
        missing = [i for i in range(layers) if i not in self.layers]
        if missing:
            raise ConfigError(
                f"leaves out {_word_ranges(missing)} of {layers} layers", "layer_precision",
                hint=f"name every layer from 0 to {layers - 1}{hint}",
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerPrecision:
    """A precision for each layer, and for matrices outside of layers by name (`NAMED`)."""

    layers: tuple[Precision, ...]
    named: Mapping[str, Precision]

    @classmethod
    def parse(cls, text: str, layers: int, base: Precision) -> "LayerPrecision":
        """`0-23=int8,24-29=fp16,lm_head=fp32`.  Raises `ConfigError` for a layer that is missing
        or named twice.
        """
        named = NamedPrecision.parse(text, layers, lambda word: parse_precision(word, base))
        named.check_whole(layers)
        return cls(tuple(named.layers[i] for i in range(layers)), named.tops)


def _list_layers(where: str, layers: int) -> range:
    found = RANGE.fullmatch(where)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if not found or not first <= last < layers:
        allowed = f"0 to {layers - 1}, ranges of these, {', '.join(NAMED)}"
        raise ConfigError(
            "names no layers of this model", "layer_precision", value=where, allowed=allowed
        )
    return range(first, last + 1)


def _word_ranges(numbers: Sequence[int]) -> str:
    """`layers 3-5, 8`."""
    parts: list[tuple[int, int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1] = (parts[-1][0], n)
        else:
            parts.append((n, n))
    words = ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in parts)
    return f"layer{'s' if len(numbers) > 1 else ''} {words}"
