"""When an answer that repeats itself ends: vLLM's `repetition_detection`.

Invariant: a `RepetitionDetectionParams` that exists is valid, and what it costs a token depends on
its own numbers alone, never on how long the text is.  Standard library only; knows no sequence.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from flyweight.validation.ranges import whole

NAME = "repetition_detection"
FOUND = "repetition_detected"  # the stop reason, in vLLM's word
LARGEST = 2048  # tokens of a pattern
LONGEST = 1 << 14  # tokens that are looked at, from the end
SHORT = 8  # tokens compared first


@dataclass(frozen=True, slots=True)
class RepetitionDetectionParams:
    """A sequence ends where its last tokens are `min_count` times one pattern of `min_pattern_size`
    (0 is 1) to `max_pattern_size` tokens (0: nothing is looked for).  Raises `RequestError`.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        self._settle("max_pattern_size", 0, LARGEST)
        self._settle("min_pattern_size", 0, self.max_pattern_size)
        least = 2 if self.max_pattern_size else 0
        most = LONGEST // max(1, self.max_pattern_size)
        self._settle("min_count", least, most)

    def _settle(self, name: str, low: int, high: int) -> None:
        found = whole(f"{NAME}.{name}", getattr(self, name), low, high)
        object.__setattr__(self, name, found)

    def find_end(
        self, before: "array[int]", first: int, new: Sequence[int], least: int
    ) -> int | None:
        """After how many of the `new` tokens, which follow those of `before` from `first` on, the
        text has gone round in circles; None where it has not.  Fewer than `least` are no end.
        """
        if not self.max_pattern_size:
            return None
        tail = before[max(first, len(before) - self.max_pattern_size * self.min_count) :]
        for i, token in enumerate(new):
            tail.append(token)
            if i + 1 >= least and self._is_repeating(tail):
                return i + 1
        return None

    def _is_repeating(self, tokens: "array[int]") -> bool:
        """Whether they end with a pattern, often enough."""
        count, last = self.min_count, tokens[-1]
        most = min(self.max_pattern_size, len(tokens) // count)
        return any(
            tokens[-1 - size] == last and _repeats(tokens, size, size * (count - 1))
            for size in range(max(1, self.min_pattern_size), most + 1)
        )


def _repeats(tokens: "array[int]", size: int, left: int) -> bool:
    """Whether each of the last `left` tokens is the one `size` before it; longer and longer runs of
    them are compared, since most differ soon.
    """
    stop, run = len(tokens), SHORT
    while left > 0:
        start = stop - min(run, left)
        if tokens[start:stop] != tokens[start - size : stop - size]:
            return False
        left, stop, run = left - (stop - start), start, 2 * run
    return True
