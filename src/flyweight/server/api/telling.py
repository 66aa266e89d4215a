"""A conversation that came in another dialect than OpenAI's, and its answer as it grows, for the
dialects that give a tool call whole.

Invariant: content and reasoning are told as they come, calls once the answer has ended; joined, it
is what /v1/chat/completions would say.
"""

from flyweight.collect import Piece
from flyweight.results import CompletionOutput
from flyweight.text.tools.deltas import Answer, Delta, Kind
from flyweight.text.tools.parser import AnswerParser, Reading

TOLD = (Kind.CONTENT, Kind.REASONING)


class Telling:
    """An answer that is read as `reading` says."""

    def __init__(self, reading: Reading) -> None:
        self._parser = AnswerParser(reading)
        self._deltas: list[Delta] = []  # empty where all is content
        self._plain = reading.plain

    def push(self, piece: Piece) -> list[Delta]:
        """Content and reasoning that are new."""
        if self._plain:
            return [Delta(Kind.CONTENT, piece.text)] if piece.text else []
        found = self._parser.push(piece.text) if piece.text else []
        if piece.finish is not None:
            found += self._parser.finish(cut=piece.finish == "length")
        self._deltas += found
        return [delta for delta in found if delta.kind in TOLD]

    def answer(self) -> Answer:
        """All there was of one that is not plain, its calls with it."""
        return Answer.of(self._deltas)


def told(reading: Reading, choice: CompletionOutput) -> Answer:
    """An answer that has come whole."""
    if reading.plain:
        return Answer(content=choice.text)
    parser = AnswerParser(reading)
    deltas = parser.push(choice.text)
    return Answer.of(deltas + parser.finish(cut=choice.finish_reason == "length"))
