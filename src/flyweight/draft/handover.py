"""When a draft model that is no longer sure of its draft ends it.

Invariant: whether a token is drafted depends on the text before it, not on the token, so that
drafts may be verified by rejection sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from flyweight.sampling.options import SequenceOptions
from flyweight.wire import I32, Sampled


class SureRow(Protocol):
    """A draft while it grows: `sure` is the estimated probability that all of it is right."""

    sure: float


@dataclass(frozen=True, slots=True)
class HandOver:
    """A draft is estimated to be right with the product of the probabilities of the draft model's
    best tokens, before temperature and cuts.  It ends before that falls below `least`; 0: never.
    """

    least: float = 0.0

    def request_scores(self, options: SequenceOptions) -> SequenceOptions:
        """The options, with the log-probability of the best token where it decides."""
        if not self.least:
            return options
        return replace(options, params=replace(options.params, logprobs=1))

    def end_drafts(self, rows: Sequence[SureRow], drawn: Sampled, tokens: I32) -> I32:
        """The tokens that were drawn for some rows, -1 where the draft ends."""
        if not self.least:
            return tokens
        before = np.array([row.sure for row in rows])
        sure = before * np.exp(drawn.top_logprobs[:, 0])
        for row, value in zip(rows, sure.tolist(), strict=True):
            row.sure = value
        return np.where(sure < self.least, np.int32(-1), tokens)


WRITE_ON = HandOver()
