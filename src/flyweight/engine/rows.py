"""What is read from a step's rows: log-probabilities, the sampler's state, a request's vector (the
last token's hidden state, the first's, or the mean of all).

Invariant: log-probabilities are raw, of the model's own distribution. Rows are added one after the
other in float64, so a vector is the same, bit for bit, however its prompt was cut into chunks;
nothing is kept of a row but the sum. Knows no model.
"""

from array import array
from collections.abc import Sequence as Seq

import numpy as np

from flyweight.engine.hook import Hook
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.sequence import Sequence
from flyweight.engine.step import Chunk, Produced
from flyweight.params.tasks import PoolingParams
from flyweight.types import ALL, Event, Finish, Request, TokenLogprobs
from flyweight.wire import F32, F64, Sampled


class PromptLogprobsHook(Hook):
    """`prompt_logprobs`: those of the prompt's own tokens."""

    def wants(self, request: Request) -> bool:
        return request.params.prompt_logprobs is not None

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        best = chunk.seq.request.params.prompt_logprobs
        return out._replace(scores=list_logprobs(best, sampled, chunk.scored))


class Mirostat(Hook):
    """`mirostat`: its state after the drawn token."""

    def wants(self, request: Request) -> bool:
        return request.params.mirostat > 0

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        if not out.tokens or sampled.mu is None:
            return out
        return out._replace(mu=float(sampled.mu[chunk.drawn.start]))


def list_logprobs(best: int | None, sampled: Sampled, rows: Seq[int]) -> tuple[TokenLogprobs, ...]:
    """Raw log-probabilities of some rows, and of the `best` at each, if they are wanted."""
    if best is None:
        return ()
    if best == ALL:  # packed: there are as many as the vocabulary has tokens
        return tuple(
            TokenLogprobs(
                chosen=float(sampled.logprobs[r]),
                rank=int(sampled.ranks[r]),
                top_ids=array("i", sampled.top_ids[r].tobytes()),
                top=array("f", sampled.top_logprobs[r].tobytes()),
            )
            for r in rows
        )
    return tuple(
        TokenLogprobs(
            chosen=float(sampled.logprobs[r]),
            rank=int(sampled.ranks[r]),
            top_ids=tuple(sampled.top_ids[r, :best].tolist()),
            top=tuple(sampled.top_logprobs[r, :best].tolist()),
        )
        for r in rows
    )


class PoolingRows(Hook):
    """The sums of the requests under way, by id."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.sums: dict[str, F64] = {}

    def wants(self, request: Request) -> bool:
        return request.pooling is not None

    def finish(self, found: Seq[tuple[Chunk, Produced]], sampled: Sampled) -> list[Event]:
        """Folds hidden states into their requests' vectors; ends those whose last is there."""
        events: list[Event] = []
        for chunk, _ in found:
            if not chunk.hidden or sampled.hidden is None:
                continue
            rows = sampled.hidden[chunk.hidden.start : chunk.hidden.stop]
            vector = self.take(chunk.seq, chunk.start, rows)
            if vector is not None:
                event = self.scheduler.end(chunk.seq, Finish.STOP)
                event.vector = vector
                events.append(event)
        return events

    def take(self, seq: Sequence, start: int, rows: F32) -> "array[float] | None":
        """Takes the wanted rows [r, H] of a chunk that began at `start`; the vector, once the
        prompt is computed.  A prompt begun again (after a preemption) is summed again.
        """
        id, params = seq.request.id, seq.request.pooling
        assert params is not None
        if seq.every_row:
            total = np.zeros(rows.shape[1]) if start == 0 else self.sums[id]
            for row in rows:
                total += row
            self.sums[id] = total
        if seq.computed < len(seq.tokens):
            return None
        return _make_vector(self.sums.pop(id) if seq.every_row else rows[-1], seq.prompt, params)

    def forget(self, id: str, index: int, *, ended: bool = False) -> None:
        self.sums.pop(id, None)


def _make_vector(values: F64 | F32, count: int, params: PoolingParams) -> "array[float]":
    """float32, of length 1 if params say so (a vector of zeros stays one)."""
    wide = values.astype(np.float64) / (count if params.pooling == "mean" else 1)
    if params.normalize:
        wide /= np.sqrt(np.square(wide).sum()) or 1.0
    return array("f", wide.astype(np.float32).tobytes())
