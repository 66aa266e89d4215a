"""Blocks of K/V as bytes, and ops that only move rows."""

import numpy as np
import pytest
from kv_cases import check_copied_blocks
from op_cases import ids, normal

from flyweight.ops.cuda.backend import CudaOps
from flyweight.ops.cuda.kv import CODES, TYPES


@pytest.mark.parametrize("v_in_k", [False, True])
@pytest.mark.parametrize("dtype", [*TYPES, *CODES])
def test_blocks_of_kv_are_copied_out_and_in(device: str, dtype: str, v_in_k: bool) -> None:
    check_copied_blocks(CudaOps(device), np.random.default_rng(29), dtype, v_in_k)


def test_rows_are_joined_and_taken(device: str) -> None:
    ops, rng = CudaOps(device), np.random.default_rng(31)
    left, right = normal(rng, 5, 8), normal(rng, 5, 3)
    joined = ops.concat((ops.upload(left), ops.upload(right)))
    rows = ids(4, 0, 0)
    want = np.concatenate((left, right), axis=1)[rows]
    assert (ops.fetch(ops.take(joined, rows)) == want).all()
    assert len(ops.take(joined, ids())) == 0
