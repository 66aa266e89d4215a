"""What a row's own tokens decide about the next one: DRY's penalties, the words that may not be
completed, and the end of a thought whose budget is spent (vLLM's `thinking_token_budget`).

Invariant: a function of a row's own tokens, draft tokens among them, so that drafts, forks and
preemption need no notice.  A repetition is a run of tokens that ends the text and stands in it
before; runs do not reach across a breaker.  Only where the closing mark of a thought may be due
are the thought's tokens read; marks are known by their bytes.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from flyweight.types import SamplingParams, ThinkingBudget
from flyweight.wire import I32, I64

STEEPEST = 88.7  # ln of the largest float32: a longer repetition costs no more
MOST = 3e38
LOOKED_AT = 64  # tokens of an answer among which a thought may begin
OTHER = b"\xff"  # replaces a token without any of a mark's bytes: no text has it
BLANKS = b" \t\r\n"


def penalise_repeats(
    tokens: Sequence[int], params: SamplingParams, breakers: Collection[int]
) -> tuple[I32, list[float]]:
    """Ids that followed an earlier occurrence of the text's end, and the penalty of each:
    multiplier * base ^ (length of the longest such repetition - allowed length).
    """
    last = params.dry_penalty_last_n
    text = np.asarray(tokens if last < 0 else tokens[-last:], np.int32)
    allowed, base = params.dry_allowed_length, params.dry_base
    steps = int(STEEPEST / math.log(base)) if base > 1 else 0
    longest = min(allowed + steps, _count_unbroken(text, breakers, allowed + steps))
    if longest < allowed or len(text) <= allowed:
        return text[:0], []
    found: dict[int, int] = {}  # longest repetition by the token that followed it
    for length, ends in _find_matches(text, longest):
        if length >= allowed:
            found |= dict.fromkeys(text[ends + 1].tolist(), length)
    penalised = [token for token in found if token not in breakers]
    values = [
        min(MOST, params.dry_multiplier * base ** (found[token] - allowed)) for token in penalised
    ]
    return np.array(penalised, np.int32), values


def _find_matches(text: I32, longest: int) -> Iterator[tuple[int, I64]]:
    """For each length, ascending, where the text's last `length` tokens end before its end."""
    last = len(text) - 1
    ends = np.arange(last)
    for length in range(1, longest + 1):
        back = length - 1
        ends = ends[np.searchsorted(ends, back) :]  # the others begin before the text
        ends = ends[text[ends - back] == text[last - back]]
        if not len(ends):
            return
        yield length, ends


def _count_unbroken(text: I32, breakers: Collection[int], most: int) -> int:
    """Tokens since the last breaker, counted to `most`."""
    for i, token in enumerate(reversed(text[-most:].tolist())):
        if token in breakers:
            return i
    return min(most, len(text))


def find_completions(
    tokens: Sequence[int], prompt: int, words: Sequence[tuple[int, ...]]
) -> list[int]:
    """The last ids of those words whose other ids end what was generated after the prompt."""
    ended = []
    for *begun, last in words:
        held = len(begun)
        if held <= len(tokens) - prompt and list(tokens[len(tokens) - held :]) == begun:
            ended.append(last)
    return ended


def force_closing(thought: ThinkingBudget, tokens: Sequence[int], prompt: int) -> int | None:
    """The one token that may follow `tokens`, of which so many are the prompt's; None where any
    may.
    """
    if len(tokens) < prompt - thought.spent + thought.budget:
        return None
    found = (
        (prompt - thought.spent, b"") if thought.opened else _find_opening(thought, tokens, prompt)
    )
    if found is None:
        return None
    begun, text = found
    end = max(begun + thought.budget, prompt)
    place = len(tokens) - end
    if not 0 <= place < len(thought.ids):
        return None
    text += _spell(thought, tokens[max(begun, prompt) : end])
    return None if thought.closing in text else thought.ids[place]


def _find_opening(
    thought: ThinkingBudget, tokens: Sequence[int], prompt: int
) -> tuple[int, bytes] | None:
    """Where a thought begins that the answer opens itself, as its reader finds it, and what of it
    the opening's last token holds; None where it has none, or none yet.
    """
    text = b""
    for i, token in enumerate(tokens[prompt : prompt + LOOKED_AT], prompt):
        text = (text + thought.parts.get(token, OTHER)).lstrip(BLANKS)
        if text.startswith(thought.opening):
            return i + 1, text[len(thought.opening) :]
        if not thought.opening.startswith(text):
            return None
    return None


def _spell(thought: ThinkingBudget, tokens: Sequence[int]) -> bytes:
    return b"".join([thought.parts.get(token, OTHER) for token in tokens])
