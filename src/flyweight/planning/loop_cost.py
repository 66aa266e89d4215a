"""What the engine's own loop takes of a step: scheduling, building the batch, taking tokens.

Measured with the real engine around a runner that computes nothing.

Invariant: no model, no weights; a cost is a constant and a term for each sequence.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.hook import LogitsEdit, LogitsRead
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.runner import Ticket
from flyweight.engine.scheduler import Scheduler
from flyweight.kv.blocks import BlockPool
from flyweight.types import Request, SamplingParams
from flyweight.wire import I32, Batch, Sampled

MANY, STEPS = 32, 40  # sequences and steps that are timed
LIMITS = Limits(
    max_model_len=128, max_num_seqs=MANY, max_num_batched_tokens=512, block_size=32, blocks=4 * MANY
)
GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Seconds of a step, and of each sequence in it."""

    step: float
    sequence: float

    def compute_seconds(self, sequences: int) -> float:
        return self.step + self.sequence * sequences


class IdleRunner:
    """Answers every row with token 1, without a model."""

    def submit(
        self,
        batch: Batch,
        moves: tuple[I32, I32] | None = None,
        edits: Sequence[LogitsEdit] = (),
        reads: Sequence[LogitsRead] = (),
    ) -> Ticket:
        rows = len(batch.rows)
        ids, reals = np.ones(rows, np.int32), np.zeros(rows, np.float32)
        none = np.zeros((rows, 0))
        return Ticket(Sampled(ids, reals, ids, none.astype(np.int32), none.astype(np.float32)))

    def wait(self, ticket: Ticket) -> Sampled:
        return ticket.sampled


def measure_loop() -> LoopCost:
    """A few milliseconds."""
    one, many = _time_steps(1), _time_steps(MANY)
    sequence = max(0.0, (many - one) / (MANY - 1))
    return LoopCost(max(0.0, one - sequence), sequence)


def _time_steps(sequences: int) -> float:
    """Seconds of a step in which so many sequences decode: the least of all, as whatever else the
    machine does comes on top.
    """
    pool = BlockPool(LIMITS.blocks, LIMITS.block_size)
    engine = Engine(Scheduler(LIMITS, pool), IdleRunner(), None, EngineMetrics())
    for i in range(sequences):
        engine.add(Request(str(i), (1, 2), GREEDY, max_tokens=STEPS + 2))
    engine.step()
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
