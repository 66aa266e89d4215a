"""int8 weights with a scale for each row, for int8 activations: dynamic ones, which are rounded
with scales of their own, and static ones, with one scale that calibration has found.

Invariant: codes are limited to -127...127, as those of static activations are (docs/ops.md).
"""

from collections.abc import Callable, Sequence

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.awq import sample_rows
from flyweight.quantize.smoothquant import compute_scales
from flyweight.quantize.statistics import InputStatistics
from flyweight.wire import F32

MOST = 127
READ = 32  # elements of a group of codes that has no scale; kernels read nothing narrower
SHRINKS = tuple(0.93**i for i in range(40))  # of a range that clips nothing: down to 6 %
ALPHAS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0)  # that a search of channels' scales tries
JUDGED, TOKENS, FEW = 256, 512, 10  # its rows, its tokens, how many of `SHRINKS` it tries
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


def search_channel_scales(
    group: Sequence[F32], inputs: InputStatistics, tie: Callable[[F32], F32] | None = None
) -> F32:
    """Scales [K] for matrices [N, K] that share an input: of SmoothQuant's for several alphas,
    those with which int8 outputs have the least squared error on the sample.  Ranges of channels
    are the largest magnitudes, or nearer to the root of mean squares: rare values are clipped then.
    """
    rows = sample_rows(group, JUDGED)
    sample = np.concatenate(inputs.sample)[:TOKENS]
    exact = sample @ rows.T
    usual = 4 * np.sqrt(inputs.compute_mean_square())
    best, least = np.ones(rows.shape[1], np.float32), np.inf
    for ranges in (inputs.most, np.sqrt(inputs.most * np.minimum(usual, inputs.most))):
        for alpha in ALPHAS:
            scales = compute_scales(group, ranges, alpha, tie)
            error = _measure_static(rows * scales, sample / scales, inputs.most / scales, exact)
            if error < least:
                best, least = scales, error
    return best


def _measure_static(rows: F32, sample: F32, most: F32, exact: F32) -> float:
    """The squared error of outputs with the best of a few static scales."""
    coded = round_rows_to_int8(rows).dequantize()
    errors = []
    for shrink in SHRINKS[:FEW]:
        scale = np.float32(max(float(most.max()) * shrink / MOST, TINY))
        codes = np.clip(np.rint(sample / scale), -MOST, MOST)
        errors.append(float(np.square(codes * scale @ coded.T - exact).sum()))
    return min(errors)
