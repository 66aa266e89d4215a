"""Blocks packed as they lie in a file: the very tiles their parser and the packing of its fields
give, for every kind that has both.
"""

from itertools import pairwise

import numpy as np
import pytest

from flyweight import _native
from flyweight.errors import CheckpointError
from flyweight.ops.cpu import CpuOps
from flyweight.ops.grouped import BlockRows
from flyweight.weights.formats import FORMATS
from flyweight.wire import U8

KINDS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"]


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    return CpuOps(2)


def blocks(kind: str, n: int, k: int, seed: int = 0) -> U8:
    """Any bits: minima and scales that are NaN or infinite among them."""
    size = FORMATS[kind].count_bytes((n, k))
    return np.random.default_rng(seed).integers(0, 256, (n, size // n), np.uint8)


def test_which_kinds(ops: CpuOps) -> None:
    assert ops.block_kinds == set(KINDS)
    assert all(FORMATS[kind].packed == kind for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (16, 256), (37, 512), (50, 1024)])
def test_tiles_are_those_of_the_parser(ops: CpuOps, kind: str, n: int, k: int) -> None:
    raw = blocks(kind, n, k)
    parsed = ops.pack((n, k), [FORMATS[kind].parse(raw.reshape(-1), (n, k))])
    cuts = sorted({0, n // 3, n - 1, n})  # in the middle of tiles
    parts = [BlockRows((stop - start, k), kind, raw[start:stop]) for start, stop in pairwise(cuts)]
    packed = ops.pack((n, k), parts)
    assert packed.kind == kind
    assert np.array_equal(ops.view_packed(packed), ops.view_packed(parsed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_rows_is_kept(ops: CpuOps, kind: str) -> None:
    raw, order = blocks(kind, 20, 256), np.random.default_rng(1).permutation(20)
    rows = BlockRows((20, 256), kind, raw).take(order)
    packed = ops.pack((20, 256), [rows])
    parsed = ops.pack((20, 256), [FORMATS[kind].parse(raw[order].reshape(-1), (20, 256))])
    assert np.array_equal(ops.view_packed(packed), ops.view_packed(parsed))


def test_blocks_that_do_not_fit_are_refused(ops: CpuOps) -> None:
    raw = blocks("q4_0", 4, 64)
    with pytest.raises(ValueError, match="blocks do not fit"):
        ops.pack((4, 64), [BlockRows((4, 64), "q4_0", raw[:, 1:])])
    with pytest.raises(CheckpointError, match="where a weight"):
        ops.pack((4, 64), [BlockRows((5, 64), "q4_0", blocks("q4_0", 5, 64))])
    with pytest.raises(CheckpointError, match="must be of one kind"):
        parts = [BlockRows((4, 64), "q4_0", raw), BlockRows((4, 64), "q8_0", raw)]
        ops.pack((8, 64), parts)
    with pytest.raises(CheckpointError, match="multiple of 32"):
        ops.pack((4, 65), [BlockRows((4, 65), "q4_0", raw)])
    tiles = _native.Tiles(_native.Arena(), "q2_k", 1, 256)
    with pytest.raises(ValueError, match="not parsed here"):
        _native.pack_blocks(ops._pool, tiles, 0, 1, np.zeros(84, np.uint8))
    tiles = _native.Tiles(_native.Arena(), "q4_0", 4, 64)
    for row, rows in ((1, 4), (-1, 1), (5, 0)):
        with pytest.raises(ValueError, match="beyond the weight"):
            _native.pack_blocks(ops._pool, tiles, row, rows, raw[:rows].reshape(-1))
