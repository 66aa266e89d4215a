"""What became of a prompt in the prefix cache, in words: why no more of it was found, the text
where it differs from a known prompt, and what to do.

Invariant: without `exact`, nothing depends on another request's text but the number of whole
blocks.  Knows no engine.
"""

import re
from collections.abc import Sequence

from flyweight.outputs import CacheExplanation
from flyweight.text.tokenizer import Tokenizer
from flyweight.types import Reuse

REASONS = {
    "": "all was found that can be; the last token is always computed",
    "caching_off": "prefix caching is switched off",
    "short": "the prompt is not longer than one block, and only whole blocks are kept",
    "rows_wanted": "log-probabilities of the prompt are requested, so it is computed",
    "evicted": "it was computed before, and its blocks were taken for others since",
    "not_yet": "another request is still computing it",
    "new_salt": "nothing is known under this cache_salt, or to this key",
    "never_seen": "nothing that was computed begins like this",
}
FIXES = {
    "caching_off": "start without --no-enable-prefix-caching (enable_prefix_caching=True)",
    "short": "use a smaller --block-size if prompts this short are frequent",
    "rows_wanted": "leave out prompt_logprobs and echo",
    "evicted": "raise --memory-limit, or send requests with this beginning closer together",
    "not_yet": "send it once the other request has its first token",
    "new_salt": "use one cache_salt for all requests that may share a cache",
}
FIRST = "nothing: the first prompt of a kind fills the cache for the next ones"
EDITED = (
    "send earlier answers unchanged: this prompt differs from what was generated, by the client or "
    "the chat template"
)
CHANGING = "put numbers, dates and times that change behind text that stays the same"
LAST = "put text that stays the same before the text that differs here"
DIGITS = re.compile(r"\d")
SHOWN = 8  # tokens of each text
NEAR = 4  # characters


def explain_cache(
    found: Reuse, tokens: Sequence[int], tokenizer: Tokenizer, *, exact: bool = True
) -> CacheExplanation:
    """The explanation of a prompt's reuse.  Where it may not be `exact`, places are rounded down to
    a block, and no text is shown.
    """
    place, size = found.diverged, found.block_size
    if place is not None and not exact and size:
        place -= place % size
    expected = got = None
    if exact and found.reason and found.diverged is not None and found.expected:
        expected = _spell(tokenizer, found.expected)
        got = _spell(tokenizer, tokens[found.diverged : found.diverged + SHOWN])
    return CacheExplanation(
        prompt_tokens=len(tokens),
        hit_tokens=found.hit,
        reason=found.reason or None,
        explanation=REASONS[found.reason],
        diverged_at=place,
        expected=expected,
        got=got,
        fix=_suggest(found, expected, got) if exact else _suggest_blindly(found),
        block_size=size,
    )


def _suggest(found: Reuse, expected: str | None, got: str | None) -> str | None:
    """What to do for more to be found; None where all was."""
    if found.reason != "never_seen" or expected is None or got is None:
        return _suggest_blindly(found)
    if found.in_answer:
        return EDITED
    return CHANGING if _differ_in_numbers(expected, got) else LAST


def _suggest_blindly(found: Reuse) -> str | None:
    """The same from the reason and the number of blocks alone."""
    if found.reason != "never_seen":
        return FIXES.get(found.reason)
    return LAST if found.hit else FIRST


def _differ_in_numbers(expected: str, got: str) -> bool:
    """Whether both texts have a digit close to where they part, as dates and times do."""
    return all(DIGITS.search(text[:NEAR]) for text in (expected, got))


def _spell(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of tokens inside a prompt, special ones included."""
    raw = b"".join(tokenizer.token_bytes(token, special=True) for token in tokens)
    return raw.decode("utf-8", "replace")
