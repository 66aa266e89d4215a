"""Random grouped weights of every structure that has a name, for whoever packs them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.grouped import LAYOUTS, GroupedWeight

GROUPED = tuple(LAYOUTS)
MOST = {"q2_k": 15, "q4_k": 63, "q5_k": 63}  # of whole-number scales and minima, in files
EXPONENTS = (112, 126)  # of scales that are exponents: 2^-16 to 2^-2
FLOATS = ("float16", "float32")


def random_grouped(
    rng: np.random.Generator, kind: str, n: int, k: int, size: float = 0.01
) -> GroupedWeight:
    """Codes and whole-number scales reach their limits; float ones are normal, `size` wide."""
    layout = LAYOUTS[kind]

    def numbers(dtype: str, per: int) -> NDArray[np.generic] | None:
        shape = (n, k // per) if per else (n, 0)
        if not dtype:
            return None
        if dtype in FLOATS:
            return (rng.standard_normal(shape) * size).astype(dtype)
        if dtype == "int8":
            return rng.integers(-128, 128, shape, np.int8)
        low, high = (0, MOST[kind]) if layout.super_group else EXPONENTS
        return rng.integers(low, high, shape, np.uint8, endpoint=True)

    least = -128 if layout.codes == "int8" else 0
    return GroupedWeight(
        (n, k),
        layout.bits,
        layout.group,
        rng.integers(least, least + (1 << layout.bits), (n, k), np.dtype(layout.codes).type),
        numbers(layout.scales, layout.group),
        layout.zero,
        layout.super_group,
        numbers(layout.super_scales, layout.super_group),
        numbers(layout.mins, layout.group),
        numbers(layout.super_scales if layout.mins else "", layout.super_group),
        layout.values,
    )  # type: ignore[arg-type]


def scaled(part: GroupedWeight, by: float) -> GroupedWeight:
    """All values `by` times as large, but for rounding: the float fields are."""
    names = ("scales", "super_scales", "mins", "super_mins")
    held = {name: x for name in names if (x := getattr(part, name)) is not None}
    floats = {name: x for name, x in held.items() if x.dtype.name in FLOATS}
    return replace(part, **{name: (x * by).astype(x.dtype) for name, x in floats.items()})


def reach(part: GroupedWeight) -> NDArray[np.float64]:
    """|w| as error bounds count it, [N, K]: |scale * (value - zero)| + |min|."""
    dense = part.dequantize().astype(np.float64)
    if part.mins is None:
        return np.abs(dense)
    bare = replace(part, mins=None, super_mins=None).dequantize().astype(np.float64)
    return np.abs(bare) + np.abs(bare - dense)
