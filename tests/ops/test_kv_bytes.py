"""Blocks of K/V as bytes: `read_kv` and `write_kv` of docs/ops.md, for every backend of a CPU."""

import numpy as np
import pytest
from kv_cases import check_copied_blocks
from op_cases import Make

from flyweight.spec import KV_TYPES


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(29)


@pytest.mark.parametrize("v_in_k", [False, True])
@pytest.mark.parametrize("dtype", KV_TYPES)
def test_blocks_of_kv_are_copied_out_and_in(
    make: Make, rng: np.random.Generator, dtype: str, v_in_k: bool
) -> None:
    check_copied_blocks(make(), rng, dtype, v_in_k)
