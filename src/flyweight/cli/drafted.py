"""An answer with the draft tokens that were accepted in colour.

Invariant: but for the colour the text is what the engine gave.  A step adds the draft tokens that
were accepted, and then one token of the model's own, which is plain.  Knows no drafter.
"""

from collections.abc import Callable, Sequence
from typing import TextIO

from flyweight.outputs import CompletionOutput

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


class DraftPainter:
    """Writes an answer to `stream` as it comes; `decode` makes text of tokens."""

    def __init__(self, stream: TextIO, decode: Callable[[Sequence[int]], str]) -> None:
        self.stream, self.decode = stream, decode
        self.tokens = self.written = 0

    def write(self, answer: CompletionOutput) -> None:
        """What is new of an answer."""
        ids, delta = list(answer.token_ids), answer.delta
        drafted = 0
        if len(ids) > self.tokens + 1:
            reached = len(self.decode(ids[:-1]))
            drafted = min(max(0, reached - self.written), len(delta))
        if drafted:
            self.stream.write(f"{GREEN}{delta[:drafted]}{PLAIN}")
        self.stream.write(delta[drafted:])
        self.stream.flush()
        self.tokens, self.written = len(ids), self.written + len(delta)
