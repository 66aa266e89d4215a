"""Log-probabilities of a step's rows, and the sampler's state after them.

Invariant: raw log-probabilities, of the model's own distribution.  Changes no sequence.
"""

from array import array

from flyweight.engine.hook import Hook
from flyweight.engine.step import Chunk, Produced
from flyweight.types import ALL, Request, TokenLogprobs
from flyweight.wire import Sampled


class PromptLogprobsHook(Hook):
    """`prompt_logprobs`: those of the prompt's own tokens."""

    def wants(self, request: Request) -> bool:
        return request.params.prompt_logprobs is not None

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        best = chunk.seq.request.params.prompt_logprobs
        return out._replace(scores=token_logprobs(best, sampled, chunk.scored))


class Mirostat(Hook):
    """`mirostat`: its state after the drawn token."""

    def wants(self, request: Request) -> bool:
        return request.params.mirostat > 0

    def settle(self, chunk: Chunk, out: Produced, sampled: Sampled) -> Produced:
        if not out.tokens or sampled.mu is None:
            return out
        return out._replace(mu=float(sampled.mu[chunk.drawn.start]))


def token_logprobs(best: int | None, sampled: Sampled, rows: range) -> tuple[TokenLogprobs, ...]:
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
