"""Suffix decoding (Oliaro et al., 2024): proposes the likeliest continuation of the longest known
suffix, from the request's own text and the answers to earlier requests of the same tenant.

Invariant: a request sees texts of its own tenant and adapter only.  A draft is no longer than the
match is reliable: `max_spec_factor` tokens for each of its tokens and each further time that it
occurred, and as far as what followed is likely enough to follow again.
At most MOST_TOKENS tokens of earlier answers are held, all tenants together.
"""

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from flyweight.draft.drafter import Draft, DraftRequest, TextOnlyDrafter
from flyweight.draft.methods import DrafterParts
from flyweight.draft.suffixes import MOST_ENDS, SuffixIndex
from flyweight.speculation import SpeculationConfig

MOST_TOKENS = 1 << 18
END = -1  # after each stored answer


@dataclass(frozen=True, slots=True)
class SuffixRules:
    """The method's keys, see docs/speculative.md."""

    max_tree_depth: int = 24
    max_cached_requests: int = 10_000
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


def make_drafter(config: SpeculationConfig, parts: DrafterParts) -> "SuffixDrafter":
    names = {name.removeprefix("suffix_decoding_"): name for name in config.options}
    return SuffixDrafter(SuffixRules(**{own: config.options[name] for own, name in names.items()}))


@dataclass(slots=True)
class IndexedText:
    """A text with its index."""

    tokens: Sequence[int]
    index: SuffixIndex = field(default_factory=SuffixIndex)


@dataclass(slots=True)
class LiveText:
    """A request under way, whose answer begins before token `begin`.  `source` is the text of the
    newest match, which ended at `end` when `seen` tokens were known.
    """

    text: IndexedText
    begin: int
    source: IndexedText | None = None
    end: int = 0
    seen: int = 0


@dataclass(slots=True)
class AnswerGeneration:
    """Answers that are dropped together, by tenant and adapter."""

    texts: dict[tuple[str, str], IndexedText] = field(default_factory=dict)
    tokens: int = 0
    requests: int = 0


class SuffixDrafter(TextOnlyDrafter):
    """A `Drafter` that needs no model."""

    def __init__(self, rules: SuffixRules | None = None) -> None:
        self.rules = rules or SuffixRules()
        self._live: dict[Hashable, tuple[LiveText, tuple[str, str]]] = {}
        self._generations = [AnswerGeneration()]  # the newest first, two at most

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._propose(request)) for request in requests]

    def forget(self, id: Hashable) -> None:
        """The answer so far becomes an earlier one.  A sequence that only lost its blocks comes
        again; what it adds then is stored when it is forgotten again.
        """
        found = self._live.pop(id, None)
        if found is not None and self.rules.max_cached_requests:
            live, owner = found
            context = max(0, live.begin - self.rules.max_tree_depth)
            self._store(owner, live.text.tokens[context:])

    def count_stored(self) -> int:
        """Tokens of earlier answers that are held."""
        return sum(one.tokens for one in self._generations)

    def _store(self, owner: tuple[str, str], answer: Sequence[int]) -> None:
        shares = min(2, self.rules.max_cached_requests)
        most = self.rules.max_cached_requests // shares
        newest = self._generations[0]
        answer = [*answer[-(MOST_TOKENS // shares - 1) :], END]
        full = newest.tokens + len(answer) > MOST_TOKENS // shares
        if newest.requests and (full or newest.requests >= most):
            newest = AnswerGeneration()
            self._generations = [newest, *self._generations][:shares]
        text = newest.texts.setdefault(owner, IndexedText(array("i")))
        assert isinstance(text.tokens, array)
        text.tokens.extend(answer)
        text.index.extend(text.tokens)
        newest.tokens += len(answer)
        newest.requests += 1

    def _propose(self, request: DraftRequest) -> tuple[int, ...]:
        owner = request.tenant, request.adapter
        live, _ = self._live.get(request.id, (None, owner))
        if live is None:
            live = LiveText(IndexedText(request.tokens), len(request.tokens) - 1)
            self._live[request.id] = live, owner
        live.text.index.extend(request.tokens)
        context = array("i", request.tokens[-self.rules.max_tree_depth :])
        stored = [one.texts[owner] for one in self._generations if owner in one.texts]
        grown = len(request.tokens) - live.seen
        best: tuple[int, ...] = ()
        most, source, end = 0.0, None, 0
        for text in (live.text, *stored):
            known = live.end + grown if text is live.source else 0
            if known >= len(text.tokens):
                known = 0
            length, ends = text.index.find(text.tokens, context, known)
            ends = ends[:MOST_ENDS]
            reliable = int(self.rules.max_spec_factor * (length + len(ends) - 1))
            draft, expected = self._vote(text, ends, min(request.limit, reliable))
            if expected > most:
                best, most, source, end = draft, expected, text, ends[0]
        live.source, live.end, live.seen = source, end, len(request.tokens)
        return best

    def _vote(
        self, text: IndexedText, ends: list[int], limit: int
    ) -> tuple[tuple[int, ...], float]:
        """What followed most matches, of equals the newest, while that is likely enough; and how
        many of these tokens are expected to be right.  Past the text's end the draft goes on from
        itself.
        """
        tokens, draft = text.tokens, array("i")
        total = len(tokens)
        chance, expected = 1.0, 0.0
        for i in range(limit):
            next = [tokens[at] if (at := end + i) < total else draft[at - total] for end in ends]
            token = next[0]
            if next.count(token) < len(next):
                token, count = Counter(next).most_common(1)[0]
                chance *= count / len(next)
                ends = [end for end, one in zip(ends, next, strict=True) if one == token]
            if token == END or chance < self.rules.min_token_prob:
                break
            draft.append(token)
            expected += chance
        return tuple(draft), expected
