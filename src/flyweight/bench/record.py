"""What each step of an engine computed, written down as it happens, for the roofline.

Invariant: a `Recorder` passes every call on unchanged; what it keeps are references to arrays the
engine has already made, so it costs a step nothing that could be measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flyweight.engine.engine import Engine, Runs
from flyweight.engine.processors import Edit
from flyweight.engine.runner import Ticket
from flyweight.plan.roofline import Seen
from flyweight.wire import I32, Batch, Sampled


class Recorder:
    """A runner around another."""

    def __init__(self, inner: Runs) -> None:
        self.inner = inner
        self.batches: list[Batch] = []

    def submit(
        self, batch: Batch, moves: tuple[I32, I32] | None = None, edits: Sequence[Edit] = ()
    ) -> Ticket:
        self.batches.append(batch)
        return self.inner.submit(batch, moves, edits)

    def wait(self, ticket: Ticket) -> Sampled:
        return self.inner.wait(ticket)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def seen(self, block_size: int) -> list[Seen]:
        """The steps so far, for the roofline."""
        return [seen(batch, block_size) for batch in self.batches]


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


def seen(batch: Batch, block_size: int) -> Seen:
    """A batch as the roofline counts it."""
    counts, contexts = np.diff(batch.starts).tolist(), batch.contexts.tolist()
    chunks = tuple(zip(counts, contexts, strict=True))
    return Seen(chunks, len(batch.rows), distinct(batch, block_size))


def distinct(batch: Batch, block_size: int) -> int:
    """Positions of K/V that are not another sequence's too."""
    if len(batch.contexts) == 1:
        return int(batch.contexts[0])
    first = np.arange(batch.tables.shape[1], dtype=np.int64) * block_size  # [M]
    filled = np.clip(batch.contexts[:, None] - first, 0, block_size)  # [S, M]
    used = filled > 0
    blocks, fill = batch.tables[used], filled[used]
    most = np.zeros(int(blocks.max()) + 1, np.int64)
    np.maximum.at(most, blocks, fill)
    return int(most.sum())
