"""Generation without a K/V cache, for comparison: each token is drawn from a computation of the
whole sequence, so an answer costs the square of its length.

Invariant: tokens are those of generation with the cache.  A sequence that got a token gives up its
blocks and waits, as one that is preempted does; the scheduler needs no branch.  Knows no model.
"""

from collections.abc import Sequence as Seq

from flyweight.engine.hook import Hook
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import SequenceState
from flyweight.engine.step import Chunk, Produced
from flyweight.types import Event, Request
from flyweight.wire import Sampled


class Recomputation(Hook):
    """Takes part in every request that draws tokens; the last of an engine's hooks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def wants(self, request: Request) -> bool:
        return request.pooling is None

    def finish(self, found: Seq[tuple[Chunk, Produced]], sampled: Sampled) -> list[Event]:
        """Forgets what was computed of sequences that got a token, and of all beams of a search
        that advanced.
        """
        for chunk, _ in found:
            if not chunk.drawn:
                continue  # of a prompt that needs more steps: no token yet
            before, request = chunk.start + chunk.count, chunk.seq.request
            beams = self.scheduler.by_id.get(request.id, ())
            for seq in (chunk.seq,) if request.beam is None else tuple(beams):
                if seq.state is SequenceState.RUNNING and len(seq.tokens) > before:
                    self.scheduler.requeue(seq)
        return []
