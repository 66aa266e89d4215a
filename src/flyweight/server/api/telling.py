"""A conversation that came in another dialect than OpenAI's, and its answer as it grows, for the
dialects that give a tool call whole.

Invariant: content and reasoning are told as they come, calls once the answer has ended; joined, it
is what /v1/chat/completions would say.
"""

from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from flyweight.collect import Piece
from flyweight.results import CompletionOutput
from flyweight.server.api.chatbody import ChatBody
from flyweight.server.body import refused
from flyweight.text.tools.deltas import Answer, Delta, Kind
from flyweight.text.tools.parser import AnswerParser, Reading

TOLD = (Kind.CONTENT, Kind.REASONING)


class Step(NamedTuple):
    """Content or reasoning begins (`open`), goes on (`delta`, with what is new) or is complete
    (`close`, with all of it).
    """

    what: Literal["open", "delta", "close"]
    kind: Kind
    text: str = ""


class Telling:
    """An answer that is read as `reading` says."""

    def __init__(self, reading: Reading) -> None:
        self._parser = AnswerParser(reading)
        self._deltas: list[Delta] = []  # empty where all is content
        self._plain = reading.plain
        self._open: Kind | None = None
        self._said: list[str] = []  # of what is open

    def push(self, piece: Piece) -> list[Delta]:
        """Content and reasoning that are new."""
        if self._plain:
            return [Delta(Kind.CONTENT, piece.text)] if piece.text else []
        found = self._parser.push(piece.text) if piece.text else []
        if piece.finish is not None:
            found += self._parser.finish(cut=piece.finish != "stop")
        self._deltas += found
        return [delta for delta in found if delta.kind in TOLD]

    def steps(self, piece: Piece) -> list[Step]:
        """The same in blocks, of which one is open at a time, and none behind the last piece."""
        found: list[Step] = []
        for kind, text, _ in self.push(piece):
            if kind is not self._open:
                found += [*self._closed(), Step("open", kind)]
                self._open = kind
            self._said.append(text)
            found.append(Step("delta", kind, text))
        return found if piece.finish is None else found + self._closed()

    def answer(self) -> Answer:
        """All there was of one that is not plain, its calls with it."""
        return Answer.of(self._deltas)

    def _closed(self) -> list[Step]:
        if self._open is None:
            return []
        step = Step("close", self._open, "".join(self._said))
        self._open, self._said = None, []
        return [step]


def told(reading: Reading, choice: CompletionOutput) -> Answer:
    """An answer that has come whole."""
    if reading.plain:
        return Answer(content=choice.text)
    parser = AnswerParser(reading)
    deltas = parser.push(choice.text)
    return Answer.of(deltas + parser.finish(cut=choice.finish_reason != "stop"))


def chat_body(given: dict[str, Any]) -> ChatBody:
    """What another dialect's body comes to in OpenAI's.  Raises `HttpError`."""
    try:
        return ChatBody.model_validate(given)
    except ValidationError as error:
        raise refused(error, ChatBody) from None
