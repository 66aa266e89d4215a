"""The state of several engines as that of one.

Invariant: totals never fall, also when replicas end.  Knows no request.
"""

from collections.abc import Iterable
from dataclasses import fields
from itertools import zip_longest

import msgspec

from flyweight.engine.metrics import EngineMetrics
from flyweight.server.pipe import Gauges

FIELDS = [one.name for one in fields(EngineMetrics)]
NOTHING = Gauges(0, 0, 0, 0, EngineMetrics(), 0, 0.0, 0.0)


class ReplicaGauges:
    """The newest gauges of each replica, by name; `ended` are totals of those that are gone."""

    def __init__(self) -> None:
        self.newest: dict[str, Gauges] = {}
        self.ended = NOTHING

    def take(self, name: str, gauges: Gauges) -> Gauges:
        """Takes the gauges of a step; the sum of all, with the tokens and times of this step.
        Streams may report steps out of order: the newest counts.
        """
        known = self.newest.get(name, NOTHING)
        if gauges.totals.steps >= known.totals.steps:
            self.newest[name] = gauges
        return msgspec.structs.replace(
            self.sum(), tokens=gauges.tokens, prompt_tokens=gauges.prompt_tokens,
            seconds=gauges.seconds,
        )  # fmt: skip

    def remove(self, name: str) -> None:
        """A replica that is gone: its totals stay, its sequences and blocks do not."""
        gone = self.newest.pop(name, None)
        if gone is not None:
            idle = msgspec.structs.replace(gone, running=0, waiting=0, blocks=0, free_blocks=0)
            idle.swapped = 0
            self.ended = add_gauges([self.ended, idle])

    def sum(self) -> Gauges:
        """All replicas together."""
        return add_gauges([self.ended, *self.newest.values()])


def add_gauges(parts: Iterable[Gauges]) -> Gauges:
    """The sum of gauges, without the tokens and seconds of steps."""
    parts = list(parts)
    totals = EngineMetrics(
        **{name: sum(getattr(one.totals, name) for one in parts) for name in FIELDS}
    )
    accepted = zip_longest(*(one.accepted for one in parts), fillvalue=0)
    return Gauges(
        sum(one.running for one in parts),
        sum(one.waiting for one in parts),
        sum(one.blocks for one in parts),
        sum(one.free_blocks for one in parts),
        totals,
        0,
        0.0,
        sum(one.busy for one in parts),
        tuple(sum(column) for column in accepted),
        0,
        sum(one.swapped for one in parts),
    )
