"""Packed weights that a start has mapped move to memory of the process's own, while it runs.

A mapping is there at once, but is decoded from more slowly than anonymous huge pages.  So the pages
move while nothing runs, and a share of them beside each step, which reads them all once.

Invariant: no weight's bytes or address change.  Knows no weight and no request.
"""

from typing import Any

from flyweight.ops.base import Packing

RUN = 8 << 20  # bytes that move at a time, and are there twice meanwhile: some milliseconds
STEPS = 40  # beside which a file moves whole, where a run for each is too little


class LayerPrefetch:
    """The pages of one mapped file, in the order in which they lie; without a file there is nothing
    to move.
    """

    def __init__(self, ops: Packing | None = None, file: Any = None) -> None:
        self._ops, self._file = ops, file
        self.left = ops.unmoved(file) if ops and file is not None else 0  # bytes
        self._share = max(1, self.left // RUN // STEPS)  # runs

    @property
    def wanted(self) -> bool:
        """Whether there is more to move."""
        return self.left > 0

    def rest(self) -> None:
        """One run, while nothing else is to be done."""
        if self._ops and self.left:
            self._ops.move(self._file, RUN)
            self.left = self._ops.unmoved(self._file)

    def step(self) -> None:
        """A share of the file, between two steps."""
        for _ in range(self._share):
            self.rest()

    def settle(self) -> None:
        """All that is left, before something is measured."""
        while self.wanted:
            self.rest()
