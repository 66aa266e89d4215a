"""Sides that compute nothing: a simulator counts steps or keeps a clock of its own.

Invariant: seconds are simulated, and the notes say so; the same round gives the same figures.
"""

from collections.abc import Callable

from flyweight.prove.technique import Measurement

Simulate = Callable[[int, float], Measurement]  # of a round, for a share of the requests


class SimulatedSide:
    """A technique's simulation, off or on."""

    def __init__(self, note: str, simulate: Simulate) -> None:
        self.notes = (note,)
        self._simulate = simulate

    def run(self, round: int, share: float) -> Measurement:
        return self._simulate(round, share)

    def close(self) -> None:
        """Nothing is held between runs."""
