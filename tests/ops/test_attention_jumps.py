"""Attention whose scores jump from tile to tile: rows' maxima rise late, and not all at once.

The bits of a row are those that its token has alone, whatever the other rows are.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from op_cases import Make, normal, paged
from test_attention_kinds import Case, Kind

from flyweight.ops.reference import ReferenceOps
from flyweight.spec import KVGroup
from flyweight.wire import F32

SCALE, TILE = 0.25, 64


def jumping(share: int, context: int, block: int, levels: F32, rising: F32, dim: int) -> Case:
    """Scores of position i are `levels[i]` more in the rows where `rising` is 1, of all tokens."""
    rng, group = np.random.default_rng(len(levels)), KVGroup(2, dim, dim)
    heads = group.heads * share
    qkv = normal(rng, context, heads * dim + group.width)
    q = normal(rng, context, heads, dim) * 0.5
    k = qkv[:, heads * dim :][:, : group.heads * dim].reshape(context, group.heads, dim)
    k[:, :, 0] = levels[:, None]
    q[:, :, 0] = rising / SCALE
    return Case(group, heads, paged(rng, [(0, context)], block), qkv, q, (context,))


def compare(native: Make, some: Case, count: int, kind: Kind) -> None:
    [context] = some.contexts
    first = context - count
    mine, truth = native("int8"), ReferenceOps("int8")
    kv, reference = some.store(mine, "pairs"), some.store(truth, "pairs")
    got = some.attend(mine, kv, [(first, count)], kind, SCALE)
    for i in {0, count // 2, count - 1}:
        assert (some.attend(mine, kv, [(first + i, 1)], kind, SCALE) == got[i]).all(), i
    want = some.attend(truth, reference, [(first, count)], kind, SCALE)
    v = some.qkv[:, (some.heads + some.group.heads) * some.group.k_dim :]
    assert np.abs(got - want).max() <= 2.0**-6 * float(np.abs(v).max())


@pytest.mark.parametrize("count, share", [(1, 16), (16, 1), (10, 2), (32, 2), (35, 2), (9, 7)])
def test_a_jump_in_every_tile(native: Make, count: int, share: int) -> None:
    """In one row and in all, at one position of the tile and in all of it."""
    context = 8 * TILE + count
    rows = context, 2 * share
    one = np.zeros(rows, np.float32)
    one[-count:, -1] = np.arange(count) == count // 2
    for rising in (one, np.ones(rows, np.float32)):
        for tile in (0, 1, 2, 3, 7):
            for at in (slice(tile * TILE + 7, tile * TILE + 8), slice(tile * TILE, None)):
                levels = np.zeros(context, np.float32)
                levels[at] = 20.0
                compare(native, jumping(share, context, 32, levels, rising, 32), count, Kind())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_jumps(native: Make, data: st.DataObject) -> None:
    draw = data.draw
    count, share = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 3, 8]))
    context = draw(st.integers(count, 700))
    levels = np.zeros(context, np.float32)
    for _ in range(draw(st.integers(0, 12))):
        at, size = draw(st.integers(0, context - 1)), draw(st.sampled_from([1, 5, TILE, 200]))
        levels[at : at + size] = draw(st.sampled_from([-15.0, 5.0, 9.0, 12.0, 18.0, 27.0, 36.0]))
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    rising = (seed.random((context, 2 * share)) < draw(st.sampled_from([0.02, 0.5, 1.0]))) * 1.0
    block, dim = draw(st.sampled_from([16, 32])), draw(st.sampled_from([32, 48, 128]))
    kind = Kind(window=draw(st.sampled_from([0, 0, 100])))
    compare(native, jumping(share, context, block, levels, np.float32(rising), dim), count, kind)
