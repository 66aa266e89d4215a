"""The methods of `flyweight quantize`, by name.

Invariant: what a method can store, needs and does by default is a line of `METHODS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flyweight.errors import ConfigError, nearest
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


METHODS = {
    "rtn": MethodKind(RoundToNearest, ("gptq", "compressed-tensors"), (4, 2, 3, 8)),
    "gptq": MethodKind(Gptq, ("gptq", "compressed-tensors"), (4, 2, 3, 8), "gram"),
}


def find_method(name: str) -> MethodKind:
    """Raises `ConfigError` for an unknown method."""
    if name not in METHODS:
        raise ConfigError(
            "is not valid", "method", value=name,
            allowed=", ".join(METHODS) + nearest(name, METHODS),
        )  # fmt: skip
    return METHODS[name]
