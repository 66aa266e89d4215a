"""Pipelines that do not fit a device's shared memory get fewer stages."""

from typing import Any

import pytest
from triton.runtime.errors import OutOfResources

from flyweight.ops.cuda.launch import launch_pipelined


class Program:
    """A kernel of which `fits` stages have memory."""

    def __init__(self, fits: int, name: str = "shared memory") -> None:
        self.fits, self.name = fits, name
        self.tried: list[int] = []

    def __call__(self, *args: Any, num_stages: int, num_warps: int) -> None:
        assert args == (1, 2) and num_warps == 4
        self.tried.append(num_stages)
        if num_stages > self.fits:
            raise OutOfResources(1 << 18, 101376, self.name)


def test_stages_that_fit_are_found_once() -> None:
    program, other = Program(2), Program(4)
    for _ in range(2):
        launch_pipelined(program, ("found once", 128), 4, 1, 2, num_warps=4)
    launch_pipelined(other, ("found once", 64), 4, 1, 2, num_warps=4)
    assert program.tried == [4, 3, 2, 2] and other.tried == [4]


@pytest.mark.parametrize("program", [Program(0), Program(2, "threads")])
def test_what_stages_do_not_mend_is_raised(program: Program) -> None:
    with pytest.raises(OutOfResources):
        launch_pipelined(program, ("raised", program.name), 3, 1, 2, num_warps=4)
    assert program.tried == ([3, 2, 1] if program.name == "shared memory" else [3])
