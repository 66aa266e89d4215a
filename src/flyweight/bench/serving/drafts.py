"""What became of a server's draft tokens while it was loaded: its counters before and after.

Invariant: names are vLLM's, on the page and in the result; a server that reports nothing, or
drafted nothing meanwhile, has no figures here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

COUNTER = re.compile(
    r'^vllm:spec_decode_num_(\w+?)(?:_total)?(?:\{(?:.*?position="(\d+)")?.*?\})? (\S+)$'
)


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """Drafts, the tokens they had, those that were accepted, and these by their place."""

    drafts: float = 0.0
    tokens: float = 0.0
    accepted: float = 0.0
    places: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, page: str) -> "DraftStatistics | None":
        """What a page of metrics says of all engines; None where it says nothing."""
        sums: dict[str, float] = {}
        places: dict[int, float] = {}
        for line in page.splitlines():
            match = COUNTER.match(line)
            if match is None:
                continue
            name, place, value = match[1], match[2], float(match[3])
            if name == "accepted_tokens_per_pos" and place is not None:
                places[int(place)] = places.get(int(place), 0.0) + value
            else:
                sums[name] = sums.get(name, 0.0) + value
        if not sums:
            return None
        names = ("drafts", "draft_tokens", "accepted_tokens")
        drafts, tokens, accepted = (sums.get(name, 0.0) for name in names)
        return cls(drafts, tokens, accepted, dict(sorted(places.items())))

    def subtract(self, before: "DraftStatistics") -> "DraftStatistics | None":
        """What came to it; None where that is nothing."""
        drafts = self.drafts - before.drafts
        if drafts <= 0 or self.tokens <= before.tokens:
            return None
        places = {at: n - before.places.get(at, 0.0) for at, n in self.places.items()}
        tokens, accepted = self.tokens - before.tokens, self.accepted - before.accepted
        return DraftStatistics(drafts, tokens, accepted, places)

    @property
    def rates(self) -> list[float]:
        """By place: how many drafts had their token there accepted."""
        return [n / self.drafts for n in self.places.values()]

    @property
    def rate(self) -> float:
        """Per cent of all draft tokens."""
        return 100 * self.accepted / self.tokens

    @property
    def length(self) -> float:
        """Tokens a draft's step gave, its own one with them."""
        return 1 + self.accepted / self.drafts

    def list_rows(self) -> Iterator[tuple[str, float]]:
        """Labels and values as they are printed."""
        yield "Acceptance rate (%)", self.rate
        yield "Acceptance length", self.length
        yield "Drafts", int(self.drafts)
        yield "Draft tokens", int(self.tokens)
        yield "Accepted tokens", int(self.accepted)

    def to_document(self) -> dict[str, Any]:
        return {
            "spec_decode_acceptance_rate": self.rate,
            "spec_decode_acceptance_length": self.length,
            "spec_decode_num_drafts": int(self.drafts),
            "spec_decode_draft_tokens": int(self.tokens),
            "spec_decode_accepted_tokens": int(self.accepted),
            "spec_decode_per_position_acceptance_rates": self.rates,
        }
