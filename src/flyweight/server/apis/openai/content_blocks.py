"""The answer to a chat as blocks of content, reasoning and calls; chat bodies made by other APIs.

Invariant: one block is open at a time; joined, they are the answer of /v1/chat/completions.
"""

import json
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import ValidationError

from flyweight.outputs import CompletionOutput
from flyweight.requests.collector import TextPiece
from flyweight.server.apis.body import make_refusal
from flyweight.server.apis.openai.chat_schema import ChatBody
from flyweight.text.tools.deltas import Delta, DeltaKind, ParsedAnswer, ParsedCall
from flyweight.text.tools.parser import AnswerFormat, AnswerParser

ENDS = (DeltaKind.WHOLE, DeltaKind.VOID)


class BlockEvent(NamedTuple):
    """A block begins (`open`), goes on (`delta`, with the new text) or ends (`close`, with all of
    its text).  A call is a block of kind `NAME`: it opens with its name, its text is the arguments;
    `complete` is false if the answer ended within it.
    """

    what: Literal["open", "delta", "close"]
    kind: DeltaKind
    text: str = ""
    complete: bool = True


class ContentBlocks:
    """Splits one answer into blocks, parsed as `reading` says."""

    def __init__(self, reading: AnswerFormat) -> None:
        self._parser = AnswerParser(reading)
        self._plain = reading.plain
        self._open: DeltaKind | None = None
        self._said: list[str] = []  # of what is open

    @property
    def calls(self) -> int:
        """The number of complete calls."""
        return self._parser.calls

    def read_piece(self, piece: TextPiece) -> list[BlockEvent]:
        """The events of a new piece; after the last piece no block is open."""
        found: list[BlockEvent] = []
        for kind, text, _ in self._read_deltas(piece):
            if kind in ENDS:
                found += self._close(complete=kind is DeltaKind.WHOLE)
                continue
            if kind is DeltaKind.NAME:
                found += [*self._close(), BlockEvent("open", kind, text)]
                self._open = kind
                continue
            block = DeltaKind.NAME if kind is DeltaKind.ARGUMENTS else kind
            if block is not self._open:
                found += [*self._close(), BlockEvent("open", block)]
                self._open = block
            self._said.append(text)
            found.append(BlockEvent("delta", block, text))
        return found if piece.finish is None else found + self._close(complete=False)

    def _read_deltas(self, piece: TextPiece) -> list[Delta]:
        if self._plain:
            return [Delta(DeltaKind.CONTENT, piece.text)] if piece.text else []
        found = self._parser.push(piece.text) if piece.text else []
        if piece.finish is not None:
            found += self._parser.finish(was_cut_off(piece.finish, piece.reason))
        return found

    def _close(self, *, complete: bool = True) -> list[BlockEvent]:
        if self._open is None:
            return []
        complete = complete or self._open is not DeltaKind.NAME
        step = BlockEvent("close", self._open, "".join(self._said), complete)
        self._open, self._said = None, []
        return [step]


def parse_answer(reading: AnswerFormat, choice: CompletionOutput) -> ParsedAnswer:
    """A whole answer, parsed."""
    if reading.plain:
        return ParsedAnswer(content=choice.text)
    parser = AnswerParser(reading)
    deltas = parser.push(choice.text)
    return ParsedAnswer.of(
        deltas + parser.finish(was_cut_off(choice.finish_reason, choice.stop_reason))
    )


def was_cut_off(finish: str | None, reason: int | str | None) -> bool:
    """Whether a limit or a stop string (the `reason`) ended the answer, and not the model."""
    return finish != "stop" or reason is not None


def parse_arguments(call: ParsedCall) -> msgspec.Raw | None:
    """A call's arguments as a JSON object on one line, with numbers and escapes unchanged; None if
    the answer was cut off in them.
    """
    try:
        found = json.loads(
            call.arguments, parse_int=str, parse_float=str, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    line = call.arguments.replace("\n", " ").replace("\r", " ")  # which no text of JSON has in it
    return msgspec.Raw(line.encode("utf-8", "backslashreplace"))


def _reject_constant(word: str) -> Any:
    """NaN and Infinity are not JSON."""
    raise ValueError(word)


def make_chat_body(given: dict[str, Any]) -> ChatBody:
    """The chat body that another API's body was converted to.  Raises `RequestError`."""
    try:
        return ChatBody.model_validate(given)
    except ValidationError as error:
        raise make_refusal(error, ChatBody) from None
