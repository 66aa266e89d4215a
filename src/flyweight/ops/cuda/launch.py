"""Launches of kernels whose pipelines are in shared memory.

Tiles were tuned on a GPU with 227 KB of shared memory a program; others have 99 KB.  Where a
pipeline does not fit, it gets fewer stages.

Invariant: the number of stages changes no bits.  Knows no kernel.
"""

from collections.abc import Callable, Hashable
from typing import Any

from triton.runtime.errors import OutOfResources

SHARED = "shared memory"  # Triton's name of it

_fitting: dict[Hashable, int] = {}  # stages, of tiles that had too many


def launch_pipelined(
    program: Callable[..., Any], tile: Hashable, stages: int, *args: Any, **options: Any
) -> None:
    """Runs program(*args, num_stages=..., **options) with `stages` or as many as fit.  `tile` is
    what decides how much memory a stage takes.  Raises `OutOfResources` where one does not fit.
    """
    left = min(stages, _fitting.get(tile, stages))
    while True:
        try:
            program(*args, num_stages=left, **options)
            return
        except OutOfResources as missing:
            if left == 1 or missing.name != SHARED:
                raise
        left -= 1
        _fitting[tile] = left
