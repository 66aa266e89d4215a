"""int8 weights with a scale for each row, for int8 activations: dynamic ones, which are rounded
with scales of their own, and static ones, with one scale that calibration has found.

Invariant: codes are limited to -127...127, as those of static activations are (docs/ops.md).
"""

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.wire import F32

MOST = 127
READ = 32  # elements of a group of codes that has no scale; kernels read nothing narrower
SHRINKS = tuple(0.93**i for i in range(40))  # of a range that clips nothing: down to 6 %
TINY = float(np.finfo(np.float32).tiny)  # scales are above 0, also where all inputs are 0


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


def find_input_scale(rows: F32, sample: F32, most: float) -> float:
    """The static scale of inputs with which the outputs of rows [N, K] for a `sample` [T, K] have
    the least squared error, of `SHRINKS` times the scale that clips nothing; `most` is the largest
    magnitude of all inputs.
    """
    gram = rows.T @ rows
    best, least = 1.0, np.inf
    for shrink in SHRINKS:
        scale = np.float32(max(most * shrink / MOST, TINY))
        lost = sample - np.clip(np.rint(sample / scale), -MOST, MOST) * scale
        error = float(np.vdot(lost @ gram, lost))
        if error < least:
            best, least = shrink, error
    return max(float(np.float32(most * best / MOST)), TINY)
