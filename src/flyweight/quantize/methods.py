"""The methods of `flyweight quantize`, by name.

Invariant: what a method can store, needs and does by default is a line of `METHODS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flyweight.errors import ConfigError, nearest
from flyweight.quantize.data_free import Hqq, NormalFloat, Signs
from flyweight.quantize.equalizing import Awq, Int8Rows, SmoothQuant, StaticInt8
from flyweight.quantize.gptq import Gptq
from flyweight.quantize.method import Method, MethodSettings
from flyweight.quantize.rounding import RoundToNearest


@dataclass(frozen=True, slots=True)
class MethodKind:
    """A method's formats, the first its default; the bits it can do, its usual ones first; whether
    grids are symmetric by default, and how activations are rounded.  `needs` is "" for methods
    without calibration, "range" for those that need the sums of inputs by column, "gram" for their
    products too.
    """

    make: Callable[[MethodSettings], Method]
    formats: tuple[str, ...]
    bits: tuple[int, ...]
    needs: str = ""
    symmetric: bool = True
    activations: str = ""
    group: int = 128


WORDS = ("gptq", "compressed-tensors")
INT8 = ("compressed-tensors",)
METHODS = {
    "rtn": MethodKind(RoundToNearest, (*WORDS, "awq", "gguf"), (4, 2, 3, 8)),
    "gptq": MethodKind(Gptq, (*WORDS, "gguf"), (4, 2, 3, 8), "gram"),
    "awq": MethodKind(Awq, ("awq", *WORDS), (4, 2, 3, 8), "gram", symmetric=False),
    "smoothquant": MethodKind(SmoothQuant, INT8, (8,), "range", activations="dynamic", group=-1),
    "nf4": MethodKind(NormalFloat, ("bitsandbytes",), (4,), group=64),
    "hqq": MethodKind(Hqq, ("hqq",), (4, 2, 3, 8), symmetric=False, group=64),
    "binary": MethodKind(Signs, ("gptq",), (2,), symmetric=False),
    "int8-dynamic": MethodKind(Int8Rows, INT8, (8,), activations="dynamic", group=-1),
    "int8-static": MethodKind(StaticInt8, INT8, (8,), "range", activations="static", group=-1),
}
ALIASES = {"int8-w8a8": "int8-dynamic"}


def resolve_method(name: str) -> str:
    """The name of a method that may have another."""
    return ALIASES.get(name, name)


def find_method(name: str) -> MethodKind:
    """Raises `ConfigError` for an unknown method."""
    name = resolve_method(name)
    if name not in METHODS:
        raise ConfigError(
            "is not valid", "method", value=name,
            allowed=", ".join(METHODS) + nearest(name, METHODS),
        )  # fmt: skip
    return METHODS[name]
