"""DRY: what a token loses for going on with a repetition, and the words that may not be completed.

Invariant: a function of a row's own tokens.  A repetition is a run of tokens that ends the text and
stands in it before; runs do not reach across a breaker.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from flyweight.types import SamplingParams
from flyweight.wire import I32, I64

STEEPEST = 88.7  # ln of the largest float32: a longer repetition costs no more
MOST = 3e38


def repeats(
    tokens: Sequence[int], params: SamplingParams, breakers: Collection[int]
) -> tuple[I32, list[float]]:
    """Ids that followed an earlier occurrence of the text's end, and the penalty of each:
    multiplier * base ^ (length of the longest such repetition - allowed length).
    """
    last = params.dry_penalty_last_n
    text = np.asarray(tokens if last < 0 else tokens[-last:], np.int32)
    allowed, base = params.dry_allowed_length, params.dry_base
    steps = int(STEEPEST / math.log(base)) if base > 1 else 0
    longest = min(allowed + steps, _unbroken(text, breakers, allowed + steps))
    if longest < allowed or len(text) <= allowed:
        return text[:0], []
    found: dict[int, int] = {}  # longest repetition by the token that followed it
    for length, ends in _matches(text, longest):
        if length >= allowed:
            found |= dict.fromkeys(text[ends + 1].tolist(), length)
    penalised = [token for token in found if token not in breakers]
    values = [
        min(MOST, params.dry_multiplier * base ** (found[token] - allowed)) for token in penalised
    ]
    return np.array(penalised, np.int32), values


def _matches(text: I32, longest: int) -> Iterator[tuple[int, I64]]:
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


def _unbroken(text: I32, breakers: Collection[int], most: int) -> int:
    """Tokens since the last breaker, counted to `most`."""
    for i, token in enumerate(reversed(text[-most:].tolist())):
        if token in breakers:
            return i
    return min(most, len(text))


def completions(tokens: Sequence[int], prompt: int, words: Sequence[tuple[int, ...]]) -> list[int]:
    """The last ids of those words whose other ids end what was generated after the prompt."""
    ended = []
    for *begun, last in words:
        held = len(begun)
        if held <= len(tokens) - prompt and list(tokens[len(tokens) - held :]) == begun:
            ended.append(last)
    return ended
