"""Memory requested ahead of its first write: which blocks, when, and never twice."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flyweight.kv.blocks import BlockPool, Table, make_root_key
from flyweight.kv.memory import RUN, SPARE, Prefault

ROOT = make_root_key("", "", "model")


@dataclass
class Layer:
    nbytes: int
    number: int


@dataclass
class Heard:
    """Takes the place of a backend: records what is requested."""

    runs: list[tuple[int, int, int]] = field(default_factory=list)

    def populate_kv(self, kv: Any, first: int, count: int) -> None:
        self.runs.append((kv.number, first, count))


def made(blocks: int, layers: int, block_bytes: int) -> tuple[Prefault, BlockPool, Heard]:
    pool, ops = BlockPool(blocks, 16), Heard()
    kv: Any = [Layer(blocks * block_bytes, i) for i in range(layers)]
    backend: Any = ops
    return Prefault(pool, kv, backend), pool, ops


def test_idle_asks_for_all_layers_of_a_run_then_the_next_and_stops_at_the_spare() -> None:
    ahead, pool, ops = made(10_000, 4, RUN // 8)
    while ahead.wanted:
        ahead.run_idle()
    assert ops.runs[:5] == [(0, 0, 8), (1, 0, 8), (2, 0, 8), (3, 0, 8), (0, 8, 8)]
    assert len(ops.runs) == len(set(ops.runs)) == SPARE // RUN
    pool.grow(Table(ROOT), 0, 16 * 8)  # a run is taken: there is one more to do
    assert ahead.wanted


def test_a_small_pool_is_requested_whole_and_once() -> None:
    ahead, _, ops = made(21, 2, RUN // 8)
    while ahead.wanted:
        ahead.run_idle()
    assert ops.runs == [(i, f, n) for f, n in ((0, 8), (8, 8), (16, 5)) for i in (0, 1)]
    ahead.step()
    ahead.run_idle()
    assert len(ops.runs) == 6


def test_no_blocks_are_nothing_to_do() -> None:
    ahead, _, ops = made(0, 3, 0)
    assert not ahead.wanted
    ahead.step()
    assert not ops.runs


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 6))
def test_steps_keep_as_far_ahead_as_they_were(taken: list[int], layers: int) -> None:
    """What steps ask for is what they used up, in order, and lies before what is taken next."""
    ahead, pool, ops = made(4000, layers, RUN // 8)
    while len(ops.runs) < 2 * layers:
        ahead.run_idle()
    table, tokens = Table(ROOT), 0
    for blocks in taken:
        before = len(ops.runs)
        pool.grow(table, tokens, tokens + 16 * blocks)
        tokens += 16 * blocks
        ahead.step()
        assert len(ops.runs) - before <= layers * blocks / 8 + 1
        assert all(first + count > pool.reached - 8 for _, first, count in ops.runs[before:])
    assert len(ops.runs) == len(set(ops.runs))
    order = [(first, layer) for layer, first, _ in ops.runs]
    assert order == sorted(order)
