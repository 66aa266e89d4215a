"""The canonical quantised weight: every on-disk format becomes this, every backend packs only this.

Invariant: dequantisation is exact arithmetic on the fields in float32, in the order the published
format defines.  This module does not know files or kernels.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyweight.wire import F32, I64, U8

# The 16 values of ggml's non-linear 4-bit codes, and those of E2M1 (one sign, two exponent bits,
# one of mantissa), doubled so that all are whole.
NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


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
    values: tuple[int, ...] = ()

    @property
    def block(self) -> int:
        """Elements along K that rows are whole multiples of."""
        return self.super_group or max(32, self.group)


# The structures that have a name; backends pack these.
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


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A range of rows [N, K] whose elements share a scale per `group` along K, one code a byte, on
    the host.

        w = scale * (value - zero) - min

    `value` is the code, or `values[code]` where there is a table.  Scales and minima are [N,
    K/group]: float16 ones are taken as they are; with super_scales (and super_mins), [N,
    K/super_group], whole numbers are multiplied by the one of their super-group.  uint8 scales
    without a super-scale are exponents: 2^(scale - 128).
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: U8 | NDArray[np.int8]
    scales: NDArray[np.float16] | NDArray[np.int8] | U8
    zero: int = 0
    super_group: int = 0
    super_scales: NDArray[np.float16] | F32 | None = None
    mins: NDArray[np.float16] | U8 | None = None
    super_mins: NDArray[np.float16] | None = None
    values: tuple[int, ...] = ()

    @property
    def layout(self) -> WeightLayout:
        return WeightLayout(
            self.bits,
            self.group,
            self.zero,
            self.codes.dtype.name,
            self.scales.dtype.name,
            _name_dtype(self.mins),
            self.super_group,
            _name_dtype(self.super_scales),
            self.values,
        )

    @property
    def kind(self) -> str:
        """The name of its structure in `LAYOUTS`; "" for one without."""
        return _NAMES.get(self.layout, "")

    def take(self, rows: slice | I64) -> "GroupedWeight":
        """Some of the rows, in the order asked for."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        cut: dict[str, Any] = {k: x[rows] for k, x in held.items() if isinstance(x, np.ndarray)}
        return replace(self, shape=(len(cut["codes"]), self.shape[1]), **cut)

    def dequantize(self) -> F32:
        """float32 [N, K]."""
        n, k = self.shape
        codes: NDArray[Any] = self.codes
        if self.values:
            codes = np.array(self.values, np.int8)[codes]
        numbers = codes.astype(np.float32).reshape(n, k // self.group, self.group)
        scale = self._spread_scales(self.scales, self.super_scales)
        if self.super_scales is None and self.scales.dtype == np.uint8:
            scale = np.ldexp(np.float32(1), self.scales.astype(np.int32) - 128)
        out = scale[:, :, None] * (numbers - np.float32(self.zero))
        if self.mins is not None:
            out = out - self._spread_scales(self.mins, self.super_mins)[:, :, None]
        return out.reshape(n, k)

    def _spread_scales(self, each: NDArray[Any], supers: NDArray[Any] | None) -> F32:
        """[N, K/group] float32: multiplied by those of the super-groups, if there are any."""
        if supers is None:
            return each.astype(np.float32)
        wide = np.repeat(supers.astype(np.float32), self.super_group // self.group, axis=1)
        return wide * each.astype(np.float32)


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A range of rows [N, K] as a file has them: `raw` holds a row of whole blocks of `kind` each.
    Backends that list the kind in `block_kinds` pack it as they would what its parser makes of it.
    """

    shape: tuple[int, int]
    kind: str
    raw: U8

    def take(self, rows: slice | I64) -> "BlockRows":
        """Some of the rows, in the order asked for."""
        cut = self.raw[rows]
        return BlockRows((len(cut), self.shape[1]), self.kind, cut)


def _name_dtype(array: NDArray[Any] | None) -> str:
    return "" if array is None else array.dtype.name
