"""The state of several engines as that of one.

Invariant: totals never fall, also when replicas end; a report costs the same for any number of
replicas.  Knows no request.
"""

from dataclasses import fields, replace
from itertools import zip_longest
from operator import attrgetter

import msgspec

from flyweight.engine.metrics import EngineMetrics
from flyweight.server.pipe import Gauges

READ = attrgetter(*(one.name for one in fields(EngineMetrics)))  # all of them, in order
NOTHING = Gauges(0, 0, 0, 0, EngineMetrics(), 0, 0.0, 0.0)


class ReplicaGauges:
    """The newest gauges of each replica, by name, and a sum that also has replicas which ended."""

    def __init__(self) -> None:
        self.newest: dict[str, Gauges] = {}
        self._sum = NOTHING

    def take(self, name: str, gauges: Gauges) -> Gauges:
        """Takes the gauges of a step; the sum of all, with the tokens and times of this step.
        Streams may report steps out of order: the newest counts.
        """
        known = self.newest.get(name, NOTHING)
        if gauges.totals.steps >= known.totals.steps:
            self.newest[name] = gauges
            self._sum = exchange_part(self._sum, known, gauges)
        return msgspec.structs.replace(
            self._sum, tokens=gauges.tokens, prompt_tokens=gauges.prompt_tokens,
            seconds=gauges.seconds,
        )  # fmt: skip

    def remove(self, name: str) -> None:
        """A replica that is gone: its totals stay, its sequences, blocks and state do not."""
        gone = self.newest.pop(name, None)
        if gone is not None:
            idle = msgspec.structs.replace(
                gone, running=0, waiting=0, blocks=0, free_blocks=0, swapped=0,
                totals=replace(gone.totals, drafting_ended=0),
            )  # fmt: skip
            self._sum = exchange_part(self._sum, gone, idle)


def exchange_part(whole: Gauges, old: Gauges, new: Gauges) -> Gauges:
    """A sum of gauges in which one part is another now, without the tokens and seconds of steps."""
    totals = EngineMetrics(
        *(total + now - before for total, before, now in zip(
            READ(whole.totals), READ(old.totals), READ(new.totals), strict=True))
    )  # fmt: skip
    parts = zip_longest(whole.accepted, old.accepted, new.accepted, fillvalue=0)
    return Gauges(
        whole.running + new.running - old.running,
        whole.waiting + new.waiting - old.waiting,
        whole.blocks + new.blocks - old.blocks,
        whole.free_blocks + new.free_blocks - old.free_blocks,
        totals,
        0,
        0.0,
        whole.busy + (new.busy - old.busy),  # which does not fall where it is rounded
        tuple(total + now - before for total, before, now in parts),
        0,
        whole.swapped + new.swapped - old.swapped,
    )
