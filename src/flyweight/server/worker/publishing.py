"""Answers of one token that are held until peers can fetch the blocks of their prompts.

Where a server listens for peers, a request of `max_tokens=1` has its prompt computed for another
server, which fetches the blocks as soon as it has the answer.

Invariant: no step waits, and no answer of more tokens.  An answer is held while blocks of its
prompt are being saved, for `MOST_HELD` seconds at most; a full disk holds none.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyweight.engine.external import ExternalCache
from flyweight.engine.sequence import Sequence as EngineSequence
from flyweight.engine.step import Plan
from flyweight.server.pipe import StepEvents

MOST_HELD = 5.0  # seconds; as long as a peer waits for blocks while no cost is known


@dataclass(slots=True, eq=False)
class HeldAnswer:
    """The last events of a choice, the keys of its prompt's blocks, and when it is sent anyway."""

    events: StepEvents
    keys: Sequence[bytes]
    end: float


class HeldAnswers:
    """Of one engine, whose blocks have `block_size` tokens; none where no peers are served."""

    def __init__(
        self,
        external: ExternalCache | None,
        block_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        served = external is not None and external.server is not None
        self.external = external if served else None
        self.block_size, self.clock = block_size, clock
        self._planned: dict[tuple[str, int], EngineSequence] = {}  # of the newest step
        self._held: list[HeldAnswer] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def note(self, plan: Plan) -> None:
        """The plan of the step whose events come next."""
        if self.external is None:
            return
        found = [chunk.seq for chunk in plan.chunks if chunk.seq.request.max_tokens == 1]
        self._planned = {(s.request.id, s.index): s for s in found if s.request.beam is None}

    def hold(self, news: list[StepEvents]) -> list[StepEvents]:
        """The events that are sent now; the others' blocks are saved before all others."""
        planned, self._planned = self._planned, {}
        if self.external is None or not planned:
            return news
        sent: list[StepEvents] = []
        for events in news:
            seq = planned.get((events.id, events.index)) if events.finish else None
            keys = [] if seq is None else seq.table.hashes[: seq.prompt // self.block_size]
            self.external.publish(keys)
            if self.external.is_saved(keys):
                sent.append(events)
            else:
                self._held.append(HeldAnswer(events, keys, self.clock() + MOST_HELD))
        return sent

    def save(self) -> None:
        """Saves one block, while there is nothing to compute."""
        if self.external is not None and self.external.wanted:
            self.external.run_idle()

    def take_ready(self) -> list[StepEvents]:
        """The events that need not be held any more."""
        if self.external is None or not self._held:
            return []
        now, held = self.clock(), self._held
        ready = [one for one in held if now >= one.end or self.external.is_saved(one.keys)]
        self._held = [one for one in held if one not in ready]
        return [one.events for one in ready]

    def drop(self, id: str, index: int | None) -> None:
        """Forgets the answer of a request, or of one choice, that its client left."""
        self._held = [
            one
            for one in self._held
            if one.events.id != id or index not in (None, one.events.index)
        ]
