"""The canonical quantised weight: every on-disk format becomes this, every backend packs only this.

Invariant: dequantisation is exact arithmetic on the fields in float32, in the order the published
format defines.  This module does not know files or kernels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyweight.wire import F32, U8


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A range of rows [N, K] whose elements share a scale per `group` along K, one code a byte, on
    the host.

    Plain (Q8_0, Q4_0):   w = scale * (code - zero), scales float16 [N, K/group].
    Super-scaled (Q6_K):  w = (super * scale) * (code - zero), scales int8, super_scales float16 [N,
    K/super_group]. With minima (Q4_K):   w = (super * scale) * code - (super_min * min), scales and
    mins uint8. Codes are uint8 (int8 for Q8_0).
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: U8 | NDArray[np.int8]
    scales: NDArray[np.float16] | NDArray[np.int8] | U8
    zero: int = 0
    super_group: int = 0
    super_scales: NDArray[np.float16] | None = None
    mins: U8 | None = None
    super_mins: NDArray[np.float16] | None = None

    @property
    def kind(self) -> str:
        """The packed kind: "q8_0" | "q4_0" | "q6_k" | "q4_k" by structure."""
        if self.mins is not None:
            return f"q{self.bits}_k"
        return f"q{self.bits}_k" if self.super_scales is not None else f"q{self.bits}_0"

    def dequantize(self) -> F32:
        """float32 [N, K]."""
        n, k = self.shape
        scale = self.scales.astype(np.float32)
        if self.super_scales is not None:
            spread = self.super_group // self.group
            scale = np.repeat(self.super_scales.astype(np.float32), spread, axis=1) * scale
        codes = self.codes.astype(np.float32).reshape(n, k // self.group, self.group)
        out = scale[:, :, None] * (codes - np.float32(self.zero))
        if self.mins is not None and self.super_mins is not None:
            spread = self.super_group // self.group
            low = np.repeat(self.super_mins.astype(np.float32), spread, axis=1)
            out = out - (low * self.mins.astype(np.float32))[:, :, None]
        return out.reshape(n, k)
