"""The canonical quantised weight: every on-disk format becomes this, every backend packs only this.

Invariant: dequantisation is exact arithmetic on the fields in float32, in the order the published
format defines.  This module does not know files or kernels.
"""

import re
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.ops.tables import E2M1, E4M3, E5M2, FP4, NF4, NON_LINEAR
from flyweight.wire import F32, I32, I64, U8

__all__ = ["E2M1", "LAYOUTS", "NON_LINEAR", "BlockRows", "GroupedWeight", "WeightLayout"]

Scales = NDArray[np.float16] | NDArray[np.uint16] | F32 | NDArray[np.int8] | U8
GROUPS = (32, 64, 128)  # that kernels read; wider groups are repeated every 128
SCALES = {"float16": "", "uint16": "_bf16", "float32": "_f32"}
BASES = (
    "u2",
    "u3",
    "u4",
    "u8",
    "s4",
    "s8",
    "nf4",
    "fp4",
    "e4m3",
    "e5m2",
)  # besides those of LAYOUTS
TABLES = {NF4: "nf4", FP4: "fp4", E4M3: "e4m3", E5M2: "e5m2"}


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The structure of a grouped weight, without its numbers: the fields of `GroupedWeight`, arrays
    by the names of their types, "" for those it lacks.
    """

    bits: int
    group: int
    zero: int = 0
    codes: str = "uint8"
    scales: str = "float16"
    mins: str = ""
    super_group: int = 0
    super_scales: str = ""
    values: tuple[float, ...] = ()
    zeros: str = ""
    row_scaled: bool = False
    ordered: bool = False
    static: bool = False

    @property
    def block(self) -> int:
        """Elements along K that rows are whole multiples of."""
        return self.super_group or max(32, self.group)


# The structures of GGUF, by the names of their types; backends pack these, and those that
# `name_kind` names.
LAYOUTS = {
    "q8_0": WeightLayout(8, 32, codes="int8"),
    "q4_0": WeightLayout(4, 32, zero=8),
    "q4_1": WeightLayout(4, 32, mins="float16"),
    "q5_0": WeightLayout(5, 32, zero=16),
    "q5_1": WeightLayout(5, 32, mins="float16"),
    "q2_k": WeightLayout(2, 16, 0, "uint8", "uint8", "uint8", 256, "float16"),
    "q3_k": WeightLayout(3, 16, 4, "uint8", "int8", "", 256, "float16"),
    "q4_k": WeightLayout(4, 32, 0, "uint8", "uint8", "uint8", 256, "float16"),
    "q5_k": WeightLayout(5, 32, 0, "uint8", "uint8", "uint8", 256, "float16"),
    "q6_k": WeightLayout(6, 16, 32, "uint8", "int8", "", 256, "float16"),
    "iq4_nl": WeightLayout(4, 32, values=NON_LINEAR),
    "iq4_xs": WeightLayout(4, 32, 0, "uint8", "int8", "", 256, "float16", NON_LINEAR),
    "mxfp4": WeightLayout(4, 32, scales="uint8", values=E2M1),
    "nvfp4": WeightLayout(4, 16, values=E2M1),
    "int8_k": WeightLayout(8, 16, 0, "int8", "int8", "", 256, "float32"),
}
_NAMES = {layout: name for name, layout in LAYOUTS.items()}


def name_kind(layout: WeightLayout) -> str:
    """The kind that a layout is packed as, "" for one that no kernel reads: BASE[_gGROUP][_SCALES]
    and suffixes, such as "u4_g128" or "e4m3_rows".

    BASE is a name in `LAYOUTS`; "u" and bits for codes with zero points or minima, "s" and bits
    for symmetric ones; or the name of a table of floats.  Suffixes: "_bf16", "_f32" scales of that
    type, "_zf" zero points that are floats, "_min" minima, "_rows" a scale a row, "_order" columns
    in another order, "_static" a scale of the activations.
    """
    bare = replace(layout, row_scaled=False, ordered=False, static=False)
    name = _NAMES.get(bare) or _name_wide(bare)
    tail = (
        ("_rows", layout.row_scaled),
        ("_order", layout.ordered),
        ("_static", layout.static),
    )
    return name and name + "".join(suffix for suffix, holds in tail if holds)


def find_base(kind: str) -> str:
    """The base of a kind's name, which says how its codes are read: "q4_0", "u4", "e4m3"."""
    for suffix in ("_static", "_order", "_rows"):
        kind = kind.removesuffix(suffix)
    return kind if kind in LAYOUTS else kind.split("_", 1)[0]


def count_block(kind: str) -> int:
    """Elements along K that rows of a kind are whole multiples of; 1 for a dense kind."""
    base = find_base(kind)
    if base in LAYOUTS:
        return LAYOUTS[base].block
    group = re.search(r"_g(\d+)", kind)
    return int(group[1]) if group else 32 if base in BASES else 1


def _name_wide(layout: WeightLayout) -> str:
    base = _name_base(layout)
    if not base or layout.super_group:
        return ""
    if not layout.scales:  # a scale a row, and no others
        return "" if layout.zeros or layout.mins else base
    if layout.group not in GROUPS or layout.scales not in SCALES:
        return ""
    low = "_zf" if layout.zeros == layout.scales else "_min" if layout.mins else ""
    return f"{base}_g{layout.group}{SCALES[layout.scales]}{low}"


def _name_base(layout: WeightLayout) -> str:
    """ "u4", "s8", "nf4", ...; "" for codes that no kernel reads."""
    plain = not (layout.zeros or layout.mins)
    if layout.values:
        whole = layout.codes == "uint8" and plain and not layout.zero
        return TABLES.get(layout.values, "") if whole else ""
    if plain:
        symmetric = (layout.bits, layout.codes, layout.zero)
        return {(4, "uint8", 8): "s4", (8, "int8", 0): "s8"}.get(symmetric, "")
    known = layout.codes == "uint8" and layout.bits in (2, 3, 4, 8) and not layout.zero
    alone = not (layout.zeros and layout.mins)
    typed = layout.zeros in ("", "uint8", layout.scales) and layout.mins in ("", layout.scales)
    return f"u{layout.bits}" if known and alone and typed else ""


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A range of rows [N, K] whose elements share a scale per `group` along K, one code a byte, on
    the host.

        w = row_scale * (scale * (value - zero) - min)

    `value` is the code, or `values[code]` where there is a table.  `zero` is one number for all, or
    `zeros` has one a group: whole (uint8), or floats of the type of the scales.

    Scales and minima are [N, K/group]: floats (float16, float32, or uint16 holding bfloat16 bits)
    are taken as they are; with super_scales (and super_mins), [N, K/super_group], whole numbers are
    multiplied by the one of their super-group.  uint8 scales without a super-scale are exponents:
    2^(scale - 128).  None: 1.  `row_scales` [N] multiply last.

    `columns` [K]: code k belongs to element columns[k] of the row (GPTQ's act-order); groups are of
    codes.  `input_scale` is the calibrated scale of int8 activations, 0 where they have their own.
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: U8 | NDArray[np.int8]
    scales: Scales | None
    zero: int = 0
    super_group: int = 0
    super_scales: NDArray[np.float16] | F32 | None = None
    mins: NDArray[Any] | None = None
    super_mins: NDArray[np.float16] | None = None
    values: tuple[float, ...] = ()
    zeros: NDArray[Any] | None = None
    row_scales: F32 | None = None
    columns: I32 | None = None
    input_scale: float = 0.0

    @property
    def layout(self) -> WeightLayout:
        return WeightLayout(
            self.bits,
            self.group,
            self.zero,
            self.codes.dtype.name,
            _name_dtype(self.scales),
            _name_dtype(self.mins),
            self.super_group,
            _name_dtype(self.super_scales),
            self.values,
            _name_dtype(self.zeros),
            self.row_scales is not None,
            self.columns is not None,
            self.input_scale > 0,
        )

    @property
    def kind(self) -> str:
        """What `name_kind` says of its layout."""
        return name_kind(self.layout)

    def take(self, rows: slice | I64) -> "GroupedWeight":
        """Some of the rows, in the given order."""
        held = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "columns"}
        cut: dict[str, Any] = {k: x[rows] for k, x in held.items() if isinstance(x, np.ndarray)}
        return replace(self, shape=(len(cut["codes"]), self.shape[1]), **cut)

    def take_columns(self, first: int, count: int) -> "GroupedWeight":
        """The columns [first, first+count), which are whole groups and super-groups."""
        assert self.columns is None, "columns in an order of their own"
        stop = first + count

        def cut(each: Any, width: int) -> Any:
            if each is None:
                return None
            return np.ascontiguousarray(each[:, first // width : stop // width])

        return replace(
            self,
            shape=(self.shape[0], count),
            group=gcd(self.group, count),  # smaller only where a row has one scale
            codes=cut(self.codes, 1),
            scales=cut(self.scales, self.group),
            mins=cut(self.mins, self.group),
            zeros=cut(self.zeros, self.group),
            super_scales=cut(self.super_scales, self.super_group or 1),
            super_mins=cut(self.super_mins, self.super_group or 1),
        )

    def dequantize(self) -> F32:
        """float32 [N, K]."""
        n, k = self.shape
        codes: NDArray[Any] = self.codes
        if self.values:
            codes = np.array(self.values, np.float32)[codes]
        out: NDArray[np.float32] = codes.astype(np.float32).reshape(n, k // self.group, self.group)
        if self.zero:
            out = out - np.float32(self.zero)
        if self.zeros is not None:
            out = out - widen(self.zeros)[:, :, None]
        if self.super_scales is None and self.scales is not None and self.scales.dtype == np.uint8:
            out = np.ldexp(np.float32(1), self.scales.astype(np.int32) - 128)[:, :, None] * out
        elif self.scales is not None:
            out = self._spread_scales(self.scales, self.super_scales)[:, :, None] * out
        if self.mins is not None:
            out = out - self._spread_scales(self.mins, self.super_mins)[:, :, None]
        out = out.reshape(n, k)
        if self.row_scales is not None:
            out = self.row_scales[:, None] * out
        if self.columns is not None:
            codes_of = np.empty(k, np.int64)
            codes_of[self.columns] = np.arange(k)
            out = out[:, codes_of]
        return out

    def _spread_scales(self, each: NDArray[Any], supers: NDArray[Any] | None) -> F32:
        """[N, K/group] float32: multiplied by those of the super-groups, if there are any."""
        if supers is None:
            return widen(each)
        wide = np.repeat(supers.astype(np.float32), self.super_group // self.group, axis=1)
        return wide * each.astype(np.float32)


def widen(numbers: NDArray[Any]) -> F32:
    """float32 of floats, of bfloat16 bits (uint16), or of whole numbers."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A range of rows [N, K] as a file has them: `raw` holds a row of whole blocks of `kind` each.
    Backends that list the kind in `block_kinds` pack it as they would what its parser makes of it.
    """

    shape: tuple[int, int]
    kind: str
    raw: U8

    def take(self, rows: slice | I64) -> "BlockRows":
        """Some of the rows, in the given order."""
        cut = self.raw[rows]
        return BlockRows((len(cut), self.shape[1]), self.kind, cut)

    def take_columns(self, first: int, count: int) -> "BlockRows":
        """The columns [first, first+count), which are whole blocks."""
        block = count_block(self.kind)
        nbytes = self.raw.shape[1] // (self.shape[1] // block)
        cut = self.raw[:, first // block * nbytes : (first + count) // block * nbytes]
        return BlockRows((self.shape[0], count), self.kind, np.ascontiguousarray(cut))


def _name_dtype(array: NDArray[Any] | None) -> str:
    return "" if array is None else array.dtype.name
