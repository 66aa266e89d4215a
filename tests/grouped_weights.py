"""Random grouped weights of every structure that has a name, for whoever packs them."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.base import to_bf16_bits
from flyweight.ops.grouped import LAYOUTS, TABLES, GroupedWeight, count_block, find_base

GGUF = tuple(LAYOUTS)
# Kinds whose form is in their name: every base, and every part of a form at least twice.
FORMED = (
    "u2_g64", "u3_g128_bf16", "u4_g128", "u4_g32_f32_zf", "u4_g64_bf16_min", "u8_g32_zf",
    "u8_g128_f32_min", "s4_g64", "s4_g128_f32", "s8_g128_bf16", "s8_rows", "nf4_g64_f32",
    "fp4_g128", "e4m3_g128_f32", "e4m3_rows", "e5m2_g32_bf16", "u4_g128_order", "s8_rows_static",
    "s8_rows_order_static", "nvfp4_rows", "nf4_g32_order", "q4_0_order",
)  # fmt: skip
GROUPED = (*GGUF, *FORMED)
MOST = {"q2_k": 15, "q4_k": 63, "q5_k": 63}  # of whole-number scales and minima, in files
EXPONENTS = (112, 126)  # of scales that are exponents: 2^-16 to 2^-2
FLOATS = ("float16", "float32")


def random_grouped(
    rng: np.random.Generator, kind: str, n: int, k: int, size: float = 0.01
) -> GroupedWeight:
    """Codes and whole-number scales reach their limits; float ones are normal, `size` wide."""
    if kind in FORMED:
        return random_formed(rng, kind, n, k, size)
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


def random_formed(
    rng: np.random.Generator, kind: str, n: int, k: int, size: float = 0.01
) -> GroupedWeight:
    """A weight of a kind that `name_kind` made: zero points of all sizes, codes that are finite."""
    base, bits = find_base(kind), {"2": 2, "3": 3, "4": 4, "8": 8}
    bare = kind.removesuffix("_static").removesuffix("_order").removesuffix("_rows")
    more = {
        "row_scales": (rng.standard_normal(n) * size).astype(np.float32)
        if "_rows" in kind
        else None,
        "columns": rng.permutation(k).astype(np.int32) if "_order" in kind else None,
        "input_scale": 0.03 if kind.endswith("_static") else 0.0,
    }
    if base in LAYOUTS:
        return replace(random_grouped(rng, bare, n, k, 1 if "_rows" in kind else size), **more)
    table = {name: values for values, name in TABLES.items()}.get(base, ())
    width = 8 if len(table) == 256 else 4 if table else bits[base[1]]
    codes = rng.integers(0, 1 << width, (n, k), np.uint8)
    if table:
        codes[~np.isfinite(np.array(table))[codes]] = 1
    group = k if "_rows" in kind else count_block(kind)
    store = {"bf16": to_bf16_bits, "f32": np.float32}.get(
        next((s for s in ("bf16", "f32") if f"_{s}" in bare), ""), np.float16
    )

    def numbers(wide: float) -> NDArray[np.generic]:
        return store((rng.standard_normal((n, k // group)) * wide).astype(np.float32))

    if base[0] == "u":
        zeros = rng.integers(0, 1 << width, (n, k // group), np.uint8)
        more["zeros"] = numbers(2.0**width) if "_zf" in kind else None if "_min" in kind else zeros
        more["mins"] = numbers(size) if "_min" in kind else None
    if base == "s8":
        codes = (codes - 128).astype(np.int8)
    scales, zero = None if "_rows" in kind else numbers(size), 8 if base == "s4" else 0
    return GroupedWeight((n, k), width, group, codes, scales, zero, values=table, **more)  # type: ignore[arg-type]


def scaled(part: GroupedWeight, by: float) -> GroupedWeight:
    """All values `by` times as large, except for rounding: the float fields are."""
    names = ("scales", "super_scales", "mins", "super_mins")
    held = {name: x for name in names if (x := getattr(part, name)) is not None}
    floats = {name: x for name, x in held.items() if x.dtype.name in FLOATS}
    return replace(part, **{name: (x * by).astype(x.dtype) for name, x in floats.items()})


def reach(part: GroupedWeight) -> NDArray[np.float64]:
    """|w| as error bounds count it, [N, K]: |scale * (value - zero)| + |min|, a zero point of each
    group counting as a minimum of its scale times as much, and codes of 8 bits as 128 less.
    """
    dense = part.dequantize().astype(np.float64)
    if part.mins is None and part.zeros is None:
        return np.abs(dense)
    middle = 128 if part.bits == 8 and part.codes.dtype == np.uint8 else part.zero
    bare = replace(part, mins=None, super_mins=None, zeros=None, zero=middle).dequantize()
    return np.abs(bare.astype(np.float64)) + np.abs(bare.astype(np.float64) - dense)
