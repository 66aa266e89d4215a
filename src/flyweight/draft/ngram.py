"""Prompt lookup (Saxena, 2023): proposes what followed the same few tokens earlier in the text.

Invariant: the draft follows the longest earlier match of the text's last `prompt_lookup_max` down
to `prompt_lookup_min` tokens, the latest such match among equals; of matches of the shortest
length, the newest WALK are looked at.  Nothing is kept of a text: an index would cost a request
more than it saves, unless its answer has a thousand tokens.
"""

from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np

from flyweight.draft.drafter import Draft, DraftRequest, TextOnlyDrafter
from flyweight.draft.methods import DrafterParts
from flyweight.errors import ConfigError
from flyweight.speculation import SpeculationConfig
from flyweight.wire import I32

NEAR = 1024  # tokens in which text that repeats itself mostly finds the longest match
WALK = 256  # matches looked at; only text that repeats itself more than that is cut short


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> "NgramDrafter":
    return NgramDrafter(**config.options)


class NgramDrafter(TextOnlyDrafter):
    """A `Drafter` that needs no model.  Raises `ConfigError` when min is below 1 or above max."""

    def __init__(self, prompt_lookup_max: int = 5, prompt_lookup_min: int = 2) -> None:
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise ConfigError(
                "is out of range",
                "prompt_lookup_min",
                value=prompt_lookup_min,
                allowed=f"1 to prompt_lookup_max = {prompt_lookup_max}",
                hint=f"nearest valid: {max(1, min(prompt_lookup_min, prompt_lookup_max))}",
            )
        self._max, self._min = prompt_lookup_max, prompt_lookup_min

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request.tokens, request.limit) for request in requests]

    def forget(self, id: Hashable) -> None:
        """Nothing is kept."""

    def _propose(self, tokens: Sequence[int], limit: int) -> Draft:
        text = np.asarray(tokens, np.int32)
        end = find_near(text, self._max) or self._search(text, tokens)
        if end == 0:
            return Draft(())
        draft = tuple(tokens[end : end + limit])
        if len(draft) < limit:  # past the text's end the draft continues from itself
            period = len(tokens) - end
            draft = tuple(draft[i % period] for i in range(limit))
        return Draft(draft)

    def _search(self, text: I32, tokens: Sequence[int]) -> int:
        """Where the best earlier match of the text's last tokens ends; 0 when there is none."""
        best, longest = 0, 0
        for end in list_matches(text, self._min):
            length = count_common(tokens, end, self._min, self._max)
            if length > longest:
                best, longest = end, length
                if length == self._max:
                    break
        return best


def find_near(text: I32, most: int) -> int:
    """Where a match of the last `most` tokens ends, if it is near; 0 when there is none."""
    near = text[-NEAR:].tobytes()
    wanted, stop = near[-4 * most :], len(near) - 4
    at = near.rfind(wanted, 0, stop)
    while at % 4 and at > 0:  # within a token
        at = near.rfind(wanted, 0, at + 4 * most - 1)
    if at < 0 or len(text) <= most:
        return 0
    return max(0, len(text) - NEAR) + at // 4 + most


def list_matches(text: I32, least: int) -> list[int]:
    """Where earlier matches of a text's last `least` tokens end, the newest first."""
    total = len(text)
    if total <= least:
        return []
    ends = np.flatnonzero(text[least - 1 : total - 1] == text[-1]) + least
    for back in range(2, least + 1):
        ends = ends[text[ends - back] == text[-back]]
    return cast(list[int], ends[: -WALK - 1 : -1].tolist())


def count_common(tokens: Sequence[int], end: int, least: int, most: int) -> int:
    """How many tokens before `end` equal the text's last ones, up to `most`; `least` are known to
    be.
    """
    length, last = least, len(tokens)
    most = min(most, end)
    while length < most and tokens[end - 1 - length] == tokens[last - 1 - length]:
        length += 1
    return length
