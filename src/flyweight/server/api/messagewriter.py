"""Answers of /v1/messages, whole and as events.

Invariant: blocks are numbered as they begin, one is open at a time, and each ends before the next;
joined, they are the whole answer's content.
"""

import json
from typing import Any
from uuid import uuid4

from flyweight.collect import Collector, Piece
from flyweight.server.answer import texts
from flyweight.server.api.telling import Telling, told
from flyweight.server.bundle import Bundle
from flyweight.server.http.errors import HttpError
from flyweight.server.http.sse import event
from flyweight.text.tools.deltas import Answer, Call, Kind
from flyweight.text.tools.parser import Reading

EMPTY = {  # blocks as they begin
    Kind.CONTENT: {"type": "text", "text": ""},
    Kind.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
}
DELTAS = {Kind.CONTENT: ("text_delta", "text"), Kind.REASONING: ("thinking_delta", "thinking")}
KINDS = {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
REASONS = {"length": "max_tokens", "stop": "end_turn"}


class MessageWriter:
    """Writes one answer."""

    media = "text/event-stream"

    def __init__(self, model: str, bundle: Bundle, reading: Reading) -> None:
        (self.collector,) = texts(bundle)
        self.reading, self.telling = reading, Telling(reading)
        self.begun = False
        self.blocks = 0  # that have begun
        self.finish: str | None = None
        self.reason: int | str | None = None
        self.head: dict[str, Any] = {
            "id": f"msg_{uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def whole(self) -> dict[str, Any]:
        (choice,) = self.collector.output().outputs
        self.finish, self.reason = choice.finish_reason, choice.stop_reason
        said = told(self.reading, choice)
        return {
            **self.head,
            "content": blocks_of(said),
            **self._stopped(said),
            "usage": spent(self.collector),
        }

    def begin(self) -> bytes:
        return b""  # what was cached, which is told first, is known with the first token

    def piece(self, prompt: int, piece: Piece) -> bytes:
        found = b""
        if not self.begun:
            self.begun = True
            start = {**self.head, "usage": spent(self.collector)}
            found = named({"type": "message_start", "message": start})
        if piece.finish is not None:
            self.finish, self.reason = piece.finish, piece.reason
        for step in self.telling.steps(piece):
            if step.what == "open":
                found += self._open(EMPTY[step.kind])
            elif step.what == "delta":
                kind, name = DELTAS[step.kind]
                found += self._delta({"type": kind, name: step.text})
            else:
                found += self._close()
        return found

    def end(self) -> bytes:
        said = self.telling.answer()
        found = b""
        for call in said.calls:
            found += self._open({**tool_use(call), "input": {}})
            found += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
            found += self._close()
        last = {"type": "message_delta", "delta": self._stopped(said)}
        return (
            found
            + named({**last, "usage": spent(self.collector)})
            + named({"type": "message_stop"})
        )

    def failed(self, error: HttpError) -> bytes:
        return named(error_of(error))

    def _open(self, block: dict[str, Any]) -> bytes:
        self.blocks += 1
        start = {"type": "content_block_start", "index": self.blocks - 1}
        return named({**start, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        head = {"type": "content_block_delta", "index": self.blocks - 1}
        return named({**head, "delta": delta})

    def _close(self) -> bytes:
        return named({"type": "content_block_stop", "index": self.blocks - 1})

    def _stopped(self, said: Answer) -> dict[str, Any]:
        if isinstance(self.reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": self.reason}
        reason = REASONS.get(self.finish or "stop", "end_turn")
        if said.calls and self.finish == "stop":
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": None}


def named(value: dict[str, Any]) -> bytes:
    """An event under the name of its type."""
    return event(value, value["type"])


def blocks_of(said: Answer) -> list[dict[str, Any]]:
    """The content of a whole answer."""
    found: list[dict[str, Any]] = []
    if said.reasoning:
        found.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
    if said.content:
        found.append({"type": "text", "text": said.content})
    return found + [tool_use(call) for call in said.calls]


def tool_use(call: Call) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": f"toolu_{uuid4().hex[:24]}",
        "name": call.name,
        "input": json.loads(call.arguments),
    }


def spent(collector: Collector) -> dict[str, int]:
    """Anthropic's `usage`: what was found in the cache is not among the input."""
    return {
        "input_tokens": len(collector.request.tokens) - collector.cached,
        "output_tokens": collector.produced,
        "cache_read_input_tokens": collector.cached,
        "cache_creation_input_tokens": 0,
    }


def error_of(error: HttpError) -> dict[str, Any]:
    """Anthropic's shape of an error."""
    fallback = "api_error" if error.status >= 500 else error.kind
    kind = KINDS.get(error.status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error.message}}
