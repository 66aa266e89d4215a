"""Naive and tiled attention: the same result, and no matrix of all pairs of positions in ours."""

import subprocess
import sys

import numpy as np
import pytest

from flyweight import _native
from flyweight.bench.attention import AttentionInputs, TiledAttention, attend_naively, make_inputs
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.wire import F64

# A process of its own: what it holds at most grows only by what attention needs.  Not ru_maxrss,
# which begins with that of the process that started it.
MEASURE = """
from flyweight.bench.attention import TiledAttention, attend_naively, make_inputs
from flyweight.ops.cpu import CpuOps
from flyweight.prove.peak import measure_peak

x = make_inputs({tokens}, heads=1, dim=16)
tiled = TiledAttention(CpuOps(2, None, "int8"), x)
run = tiled.attend if {tiled} else lambda: attend_naively(x)
before = measure_peak()
run()
print(measure_peak() - before)
"""


def truth(x: AttentionInputs) -> F64:
    """Position by position, in float64."""
    tokens, heads, dim = x.q.shape
    share = heads // x.k.shape[1]
    out = np.empty((tokens, heads, dim))
    for head in range(heads):
        k, v = x.k[:, head // share].astype(np.float64), x.v[:, head // share].astype(np.float64)
        for t in range(tokens):
            p = np.exp(k[: t + 1] @ x.q[t, head] * x.scale)
            out[t, head] = p @ v[: t + 1] / p.sum()
    return out.reshape(tokens, heads * dim)


def measure_growth(tokens: int, *, tiled: bool) -> int:
    """Bytes that attention adds to what its process holds."""
    code = MEASURE.format(tokens=tokens, tiled=tiled)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 300])
@pytest.mark.parametrize("ops", [ReferenceOps("f32"), CpuOps(2, _native.isas()[-1], "int8")])
def test_both_ways_give_the_same(tokens: int, ops: Ops) -> None:
    x = make_inputs(tokens, heads=4, kv_heads=2, dim=32, seed=tokens)
    expected = truth(x)
    assert np.allclose(attend_naively(x), expected, atol=1e-5)
    assert np.allclose(TiledAttention(ops, x).attend(), expected, atol=1e-5)


def test_no_matrix_of_all_pairs_is_built_at_32k() -> None:
    """It would have 4 GiB for one head."""
    matrix = make_inputs(1).matrix * 32_768**2
    assert matrix == 4 << 30
    assert measure_growth(32_768, tiled=True) < matrix // 64


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    """The measurement sees the naive way's matrix: 256 MiB for 8,192 positions."""
    assert measure_growth(8192, tiled=False) > 128 << 20
    assert measure_growth(8192, tiled=True) < 16 << 20
