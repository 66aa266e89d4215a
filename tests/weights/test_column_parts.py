"""Columns of quantised rows: what is left of them dequantises as before."""

import numpy as np
import pytest

from flyweight.ops.cpu import CpuOps
from flyweight.ops.grouped import BlockRows, GroupedWeight, count_block
from flyweight.weights.formats import FORMATS
from grouped_weights import GROUPED, random_grouped

CUT = [kind for kind in GROUPED if "_order" not in kind]
BLOCKS = sorted(CpuOps(1).block_kinds)


@pytest.mark.parametrize("kind", CUT)
def test_columns_of_groups(kind: str) -> None:
    block = count_block(kind)
    whole = random_grouped(np.random.default_rng(3), kind, 5, 4 * block)
    cut = whole.take_columns(block, 2 * block)
    assert cut.kind == whole.kind
    assert cut.shape == (5, 2 * block)
    expected = whole.dequantize()[:, block : 3 * block]
    assert np.array_equal(cut.dequantize(), expected, equal_nan=True)


@pytest.mark.parametrize("kind", BLOCKS)
def test_columns_of_blocks(kind: str) -> None:
    block = count_block(kind)
    nbytes = FORMATS[kind].count_bytes((1, block))
    raw = np.random.default_rng(5).integers(0, 256, (3, 4 * nbytes), np.uint8)
    cut = BlockRows((3, 4 * block), kind, raw).take_columns(2 * block, block)
    whole = FORMATS[kind].parse(raw.reshape(-1), (3, 4 * block))
    part = FORMATS[kind].parse(cut.raw.reshape(-1), cut.shape)
    assert isinstance(whole, GroupedWeight)
    assert isinstance(part, GroupedWeight)
    expected = whole.dequantize()[:, 2 * block : 3 * block]
    assert np.array_equal(part.dequantize(), expected, equal_nan=True)
