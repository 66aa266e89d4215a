"""What rank 0 sends for a step: every array arrives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.parallel.messages import OPTIONAL, PLAIN, Moves, read_step, write_step
from flyweight.sampling.arrays import columns
from flyweight.wire import I32, Batch

numbers = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8).map(
    lambda found: np.array(found, np.int32)
)
pairs = st.one_of(st.none(), st.tuples(numbers, numbers))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    named = {name: draw(numbers) for name in PLAIN}
    named |= {name: draw(st.one_of(st.none(), numbers)) for name in OPTIONAL}
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    tables = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    ancestors, branches = draw(pairs), draw(st.integers(0, 3))
    return Batch(
        **named, tables=tables, sampling=columns([]), ancestors=ancestors, branches=branches
    )


def same(first: I32 | None, second: I32 | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def same_pairs(first: Moves, second: Moves) -> bool:
    if first is None or second is None:
        return first is second
    return all(map(same, first, second))


@given(batches(), pairs)
def test_every_array_of_a_step_arrives(batch: Batch, moves: Moves) -> None:
    found = read_step(write_step(batch, moves))
    for name in (*PLAIN, *OPTIONAL, "tables"):
        assert same(getattr(found.batch, name), getattr(batch, name)), name
    assert found.batch.branches == batch.branches
    assert same_pairs(found.batch.ancestors, batch.ancestors)
    assert same_pairs(found.moves, moves)


def test_numbers_that_are_no_step_are_an_error() -> None:
    step = write_step(
        Batch(*(np.zeros(1, np.int32),) * 5, np.zeros((1, 1), np.int32), np.zeros(1, np.int32),
              columns([])),
        None,
    )  # fmt: skip
    with pytest.raises(AssertionError):
        read_step(step[:-1])
