"""Signs times the mean magnitude of their group (XNOR-Net's weights; Rastegari et al., 2016).

It is here for comparison: no model keeps its quality at one bit without training.  Invariant: the
scale is the best one for signs, in the sense of least squares.
"""

import numpy as np

from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.grouping import split_groups
from flyweight.wire import F32


def round_to_signs(rows: F32, group: int = 128) -> GroupedWeight:
    """Rows [N, K] as codes 0 and 2 around the zero point 1, in the kind of 2 bits, with a float16
    scale for each `group` columns.  Raises `ConfigError` where groups do not divide K.
    """
    held = split_groups(rows, group)
    scales = np.abs(held).mean(axis=2).astype(np.float16)
    codes = np.where(rows < 0, np.uint8(0), np.uint8(2))
    zeros = np.ones(scales.shape, np.uint8)
    return GroupedWeight(rows.shape, 2, group, codes, scales, zeros=zeros)
