"""How much of a mapped file moves at a time, and when it ends."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from flyweight.weights.packed.shelf import RUN, STEPS, LayerPrefetch


@dataclass
class Heard:
    """Stands for a backend with one file; `refuses` after so many moves."""

    left: int
    refuses: int = 1 << 30
    moves: list[int] = field(default_factory=list)

    def count_unmoved(self, file: Any) -> int:
        return self.left

    def move(self, file: Any, count: int) -> None:
        self.moves.append(count)
        self.left = 0 if len(self.moves) > self.refuses else max(0, self.left - count)


def made(size: int, refuses: int = 1 << 30) -> tuple[LayerPrefetch, Heard]:
    ops: Any = Heard(size, refuses)
    return LayerPrefetch(ops, "file"), ops


def test_an_idle_engine_moves_run_by_run_to_the_end() -> None:
    moving, ops = made(3 * RUN + 1)
    while moving.wanted:
        moving.run_idle()
    assert ops.moves == [RUN] * 4
    moving.run_idle(), moving.step(), moving.settle()
    assert len(ops.moves) == 4


@pytest.mark.parametrize("size", [RUN // 2, 10 * RUN, 100 * RUN, 1000 * RUN])
def test_a_few_dozen_steps_move_a_file_of_any_size(size: int) -> None:
    moving, ops = made(size)
    for count in range(2 * STEPS):
        before = len(ops.moves)
        moving.step()
        assert len(ops.moves) - before <= max(1, size // RUN // STEPS)
        assert moving.wanted == (count + 1 < -(-size // RUN) / max(1, size // RUN // STEPS))
    assert not moving.wanted and set(ops.moves) == {RUN}


def test_a_refusal_is_the_end() -> None:
    moving, ops = made(10 * RUN, refuses=2)
    moving.settle()
    assert not moving.wanted and len(ops.moves) == 3


def test_without_a_file_there_is_nothing_to_move() -> None:
    moving = LayerPrefetch()
    moving.run_idle(), moving.step(), moving.settle()
    assert not moving.wanted
