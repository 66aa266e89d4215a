"""Prompt lookup (Saxena, 2023): proposes what followed the same few tokens earlier in the text.

Invariant: the draft follows the longest earlier match of the text's last `prompt_lookup_max` down
to `prompt_lookup_min` tokens, the latest such match among equals.  Work per step does not grow with
the text: each sequence keeps chains of positions that share their last few tokens.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.methods import DrafterParts
from flyweight.errors import ConfigError
from flyweight.speculation import SpeculationConfig
from flyweight.wire import Batch, Tensor

WALK = 256  # matches looked at per step; only text that repeats itself more than that is cut short


@dataclass(slots=True)
class NgramIndex:
    """Where each run of `prompt_lookup_min` tokens last ended, and before[end]: the time before."""

    latest: dict[tuple[int, ...], int] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)  # [known]; 0 ends a chain


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> "NgramDrafter":
    return NgramDrafter(**config.options)


class NgramDrafter:
    """A `Drafter` that needs no model.  Raises `ConfigError` when min is below 1 or above max."""

    taps = ()

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
        self._chains: dict[Hashable, NgramIndex] = {}

    def observe(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """Nothing to learn: the text is in the requests."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request) for request in requests]

    def forget(self, id: Hashable) -> None:
        self._chains.pop(id, None)

    def _propose(self, request: DraftRequest) -> Draft:
        chains = self._chains.setdefault(request.id, NgramIndex())
        self._extend(chains, request.tokens)
        end = self._match(chains, request.tokens)
        if end == 0:
            return Draft(())
        period = len(request.tokens) - end  # past the text's end the draft continues from itself
        return Draft(tuple(request.tokens[end + i % period] for i in range(request.limit)))

    def _extend(self, chains: NgramIndex, tokens: Sequence[int]) -> None:
        """Files every position that has a next token; the last one waits until it has."""
        for end in range(len(chains.before), len(tokens)):
            before = 0
            if end >= self._min:
                run = tuple(tokens[end - self._min : end])
                before = chains.latest.get(run, 0)
                chains.latest[run] = end
            chains.before.append(before)

    def _match(self, chains: NgramIndex, tokens: Sequence[int]) -> int:
        """Where the best earlier match of the text's last tokens ends; 0 when there is none."""
        end = chains.latest.get(tuple(tokens[-self._min :]), 0) if len(tokens) >= self._min else 0
        best, longest = 0, 0
        for _ in range(WALK):
            if end == 0 or longest == self._max:
                break
            length = self._count_common(tokens, end)
            if length > longest:
                best, longest = end, length
            end = chains.before[end]
        return best

    def _count_common(self, tokens: Sequence[int], end: int) -> int:
        """How many tokens before `end` equal the text's last ones, up to max; min are known to."""
        length, last = self._min, len(tokens)
        while (
            length < min(self._max, end) and tokens[end - 1 - length] == tokens[last - 1 - length]
        ):
            length += 1
        return length
