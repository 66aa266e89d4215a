"""int8 weights with a scale for each row, for int8 activations: dynamic ones, which are rounded
with scales of their own, and static ones, with one scale that calibration has found.

Invariant: codes are limited to -127...127, as those of static activations are (docs/ops.md).
"""

from dataclasses import dataclass

import numpy as np

from flyweight.errors import ConfigError
from flyweight.ops.grouped import GroupedWeight
from flyweight.wire import F32, I64

MOST = 127
READ = 32  # elements of a group of codes that has no scale; kernels read nothing narrower
SHIFT = 14  # low bits of a float32 that counts do not tell apart: steps of 2^-9
BINS = 1 << (31 - SHIFT)
SHRINKS = tuple(1 - i / 100 for i in range(90))


def round_rows_to_int8(rows: F32, input_scale: float = 0.0) -> GroupedWeight:
    """Rows [N, K] as int8 with a float32 scale each, max|w| / 127; `input_scale` is that of static
    activations, 0 for dynamic ones.
    """
    n, k = rows.shape
    scales = np.abs(rows).max(axis=1) / np.float32(MOST)
    inverse = np.zeros_like(scales)
    np.divide(1, scales, out=inverse, where=scales > 0)
    codes = np.clip(np.rint(rows * inverse[:, None]), -MOST, MOST).astype(np.int8)
    group = k if k % READ else READ
    return GroupedWeight((n, k), 8, group, codes, None, row_scales=scales, input_scale=input_scale)


@dataclass(frozen=True, slots=True)
class MagnitudeCounts:
    """How often each magnitude was seen among activations: `counts` [BINS] by the high bits of the
    float32, so that a bin is at most 2^-9 of its value wide, and `most`, the largest.
    """

    counts: I64
    most: float

    @classmethod
    def count(cls, x: F32) -> "MagnitudeCounts":
        """Of all elements of x, which are finite."""
        size = np.abs(x).reshape(-1)
        bins = size.view(np.uint32) >> np.uint32(SHIFT)
        most = float(size.max(initial=0))
        return cls(np.bincount(bins, minlength=BINS).astype(np.int64), most)

    def merge(self, other: "MagnitudeCounts") -> "MagnitudeCounts":
        """Of both sets of elements."""
        return MagnitudeCounts(self.counts + other.counts, max(self.most, other.most))

    def find_peak_scale(self) -> float:
        """The input scale with which no element seen is clipped: max|x| / 127."""
        return self._limit(self.most)

    def find_share_scale(self, share: float) -> float:
        """The scale that clips all but this share of the elements, such as 0.9999.  Raises
        `ConfigError` for a share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise ConfigError(
                "is not valid", "percentile", value=share, allowed="above 0, at most 1",
                hint="nearest valid: 1",
            )  # fmt: skip
        total = np.cumsum(self.counts)
        at = int(np.searchsorted(total, share * total[-1], side="left"))
        return self._limit(min(float(_list_values(1)[at]), self.most))

    def find_least_error_scale(self) -> float:
        """The scale with the smallest mean squared error of rounding, of 90 from 10 % of max|x|."""
        held = np.flatnonzero(self.counts)
        if not held.size:
            return self._limit(0.0)
        values, counts = _list_values(0.5)[held].astype(np.float64), self.counts[held]
        errors = []
        for shrink in SHRINKS:
            scale = self._limit(self.most * shrink)
            codes = np.minimum(np.rint(values / scale), MOST)
            errors.append(float(counts @ np.square(codes * scale - values)))
        return self._limit(self.most * SHRINKS[int(np.argmin(errors))])

    def _limit(self, most: float) -> float:
        """A scale is a float32 above 0, also where all elements are 0."""
        return max(float(np.float32(most / MOST)), float(np.finfo(np.float32).tiny))


def _list_values(share: float) -> F32:
    """[BINS]: the magnitude at this share of each bin's width."""
    low = np.arange(BINS, dtype=np.uint32) << np.uint32(SHIFT)
    offset = min(int(share * (1 << SHIFT)), (1 << SHIFT) - 1)
    found: F32 = (low + np.uint32(offset)).view(np.float32)
    return found
