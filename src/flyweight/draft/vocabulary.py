"""Maps the token ids of a target's vocabulary to those of a draft model's, and back.

Invariant: ids that are mapped to each other are the same text, so a mapped draft means what the
draft model drew.  Knows no tokenizer: a vocabulary is a list of pieces with their bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.wire import F32, I32

LEAST_SHARE = 0.9  # of the target's tokens that a draft model must have, to draft by ids
Token = tuple[str, bytes]  # a piece as the file has it, and the bytes of its text


@dataclass(frozen=True, slots=True)
class IdMap:
    """The other vocabulary's id of each token, -1 where it has none: `to_draft` [V of the target],
    `to_target` [V of the draft].
    """

    to_draft: I32
    to_target: I32

    @property
    def share(self) -> float:
        """The share of the target's tokens that are mapped."""
        return float((self.to_draft >= 0).mean())

    def spread(self, probs: F32) -> F32:
        """The draft model's probabilities of the target's tokens, where the token drawn is one of
        both: [V of the draft] -> [V of the target].
        """
        out = np.zeros(len(self.to_draft), np.float32)
        both = self.to_draft >= 0
        out[both] = probs[self.to_draft[both]]
        return scale_probs(out)


def scale_probs(probs: F32) -> F32:
    """Probabilities that add up to 1, of a part of the tokens; zeros stay zeros."""
    total = probs.sum(dtype=np.float64)
    return probs if total == 0 else (probs / total).astype(np.float32)


def is_same(target: Sequence[Token], draft: Sequence[Token]) -> bool:
    """Whether ids mean the same.  One may have more at the end, such as a padded embedding."""
    common = min(len(target), len(draft))
    return list(target[:common]) == list(draft[:common])


def map_ids(target: Sequence[Token], draft: Sequence[Token]) -> IdMap:
    """Tokens of one spelling are mapped; then, of those that are left, tokens of one text, as files
    of other kinds spell a space otherwise.
    """
    to_draft = np.full(len(target), -1, np.int32)
    to_target = np.full(len(draft), -1, np.int32)
    for part in (0, 1):
        known = {token[part]: i for i, token in enumerate(draft) if to_target[i] < 0 and token[1]}
        for i, token in enumerate(target):
            j = known.get(token[part], -1) if to_draft[i] < 0 else -1
            if j >= 0 and to_target[j] < 0:
                to_draft[i], to_target[j] = j, i
    return IdMap(to_draft, to_target)
