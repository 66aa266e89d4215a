"""What each step of an engine computed, written down as it happens, for the roofline.

Invariant: a `Recorder` passes every call on unchanged; it copies a few small arrays a step, some
microseconds.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight.engine.engine import Engine
from flyweight.engine.hook import LogitsEdit
from flyweight.engine.runner import ModelRunner, Ticket
from flyweight.plan.roofline import StepShape
from flyweight.wire import I32, Batch, Sampled


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What is kept of a batch; `tables` only where sequences may share blocks."""

    starts: I32
    contexts: I32
    tables: I32 | None
    rows: int

    def seen(self, block_size: int) -> StepShape:
        """The step as the roofline counts it."""
        counts, contexts = np.diff(self.starts).tolist(), self.contexts.tolist()
        chunks = tuple(zip(counts, contexts, strict=True))
        return StepShape(chunks, self.rows, self._distinct(block_size))

    def _distinct(self, block_size: int) -> int:
        """Positions of K/V that are not another sequence's too."""
        if self.tables is None:
            return int(self.contexts.sum())
        first = np.arange(self.tables.shape[1], dtype=np.int64) * block_size  # [M]
        filled = np.clip(self.contexts[:, None] - first, 0, block_size)  # [S, M]
        used = filled > 0
        blocks, fill = self.tables[used], filled[used]
        most = np.zeros(int(blocks.max()) + 1, np.int64)
        np.maximum.at(most, blocks, fill)
        return int(most.sum())


class Recorder:
    """A runner around another."""

    def __init__(self, inner: ModelRunner) -> None:
        self.inner = inner
        self.steps: list[RecordedStep] = []
        self.inside = 0.0  # seconds within the runner: copies, model, sampling

    def submit(
        self, batch: Batch, moves: tuple[I32, I32] | None = None, edits: Sequence[LogitsEdit] = ()
    ) -> Ticket:
        tables = batch.tables.copy() if len(batch.contexts) > 1 else None
        self.steps.append(
            RecordedStep(batch.starts.copy(), batch.contexts.copy(), tables, len(batch.rows))
        )
        start = time.perf_counter()
        ticket = self.inner.submit(batch, moves, edits)
        self.inside += time.perf_counter() - start
        return ticket

    def wait(self, ticket: Ticket) -> Sampled:
        return self.inner.wait(ticket)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def seen(self, block_size: int) -> list[StepShape]:
        """The steps so far, for the roofline."""
        return [step.seen(block_size) for step in self.steps]


@contextmanager
def recording(engine: Engine) -> Iterator[Recorder]:
    """Steps of the engine are recorded until the block ends."""
    inner = engine.runner
    recorder = Recorder(inner)
    engine.runner = recorder
    try:
        yield recorder
    finally:
        engine.runner = inner
