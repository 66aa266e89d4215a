"""One sequence's sampling options, packed once, so that a step only copies them.

Invariant: a record holds every option that has one value a row, in `RECORD`'s order.  Standard
library only; knows no arrays and no step.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass, field

from flyweight.types import SamplingParams

WORD = 2**64 - 1
# temperature, top_p, min_p, three penalties, top_k, logprobs, choice, prompt, seed
RECORD = struct.Struct("=6f4iQ")


@dataclass(slots=True, eq=False)
class Options:
    """How the tokens of choice `choice` of a request are chosen.  `prompt` is how many of its
    tokens are the caller's; `stop_ids` may not be drawn before the params' min_tokens.  `plain`
    options need nothing but their record.
    """

    params: SamplingParams
    seed: int
    choice: int
    prompt: int
    stop_ids: Collection[int] = ()
    penalised: bool = field(init=False)
    plain: bool = field(init=False)
    record: bytes = field(init=False)

    def __post_init__(self) -> None:
        p = self.params
        penalties = p.repetition_penalty, p.presence_penalty, p.frequency_penalty
        self.penalised = penalties != (1, 0, 0)
        self.plain = not (self.penalised or p.logit_bias or p.min_tokens)
        self.record = RECORD.pack(
            *(p.temperature, p.top_p, p.min_p, *penalties),
            min(p.top_k, 2**31 - 1),  # above any vocabulary, so the same as all
            -1 if p.logprobs is None else p.logprobs,
            self.choice,
            self.prompt if self.penalised else 0,
            self.seed & WORD,
        )
