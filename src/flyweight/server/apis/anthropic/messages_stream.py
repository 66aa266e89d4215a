"""Answers of /v1/messages, whole and as events.

Invariant: blocks are numbered in order, one is open at a time, and each ends before the next;
joined, they are the content of the whole answer.
"""

from typing import Any
from uuid import uuid4

from flyweight.requests.collector import Collector, TextPiece
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.apis.answer import get_collectors
from flyweight.server.apis.openai.content_blocks import (
    BlockEvent,
    ContentBlocks,
    parse_answer,
    parse_arguments,
)
from flyweight.server.apis.usage import report_timings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import encode_event
from flyweight.text.tools.deltas import DeltaKind, ParsedAnswer
from flyweight.text.tools.parser import AnswerFormat

EMPTY: dict[DeltaKind, dict[str, Any]] = {  # blocks as they begin
    DeltaKind.CONTENT: {"type": "text", "text": ""},
    DeltaKind.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
}
DELTAS = {
    DeltaKind.CONTENT: ("text_delta", "text"),
    DeltaKind.REASONING: ("thinking_delta", "thinking"),
    DeltaKind.NAME: ("input_json_delta", "partial_json"),
}
KINDS = {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
PINGED = encode_event({"type": "ping"}, "ping")
REASONS = {"length": "max_tokens", "stop": "end_turn"}


class MessageWriter:
    """Writes one answer."""

    media = "text/event-stream"
    ping = PINGED

    def __init__(self, model: str, reading: AnswerFormat, group: RequestGroup) -> None:
        self.model = group.model
        (self.collector,) = get_collectors(group)
        self.reading, self.blocks = reading, ContentBlocks(reading)
        self.begun = False
        self.block_count = 0  # that have begun
        self.finish: str | None = None
        self.reason: int | str | None = None
        self.id = f"msg_{uuid4().hex[:24]}"
        self.head: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def write_reply(self) -> dict[str, Any]:
        (choice,) = self.collector.output().outputs
        self.finish, self.reason = choice.finish_reason, choice.stop_reason
        parsed = parse_answer(self.reading, choice)
        half = any(parse_arguments(call) is None for call in parsed.calls)
        return {
            **self.head,
            "content": make_blocks(parsed),
            **self._make_stop(0 if half else len(parsed.calls)),
            "usage": make_usage(self.collector),
            **report_timings(self.model, self.collector),
        }

    def begin(self) -> bytes:
        return b""  # the first event has the cached tokens, known with the first token

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        found = b""
        if not self.begun:
            self.begun = True
            start = {**self.head, "usage": make_usage(self.collector)}
            found = encode_named({"type": "message_start", "message": start})
        if piece.finish is not None:
            self.finish, self.reason = piece.finish, piece.reason
        return found + b"".join([self._write_step(step) for step in self.blocks.read_piece(piece)])

    def end(self) -> bytes:
        last = {"type": "message_delta", "delta": self._make_stop(self.blocks.calls)}
        cost = {"usage": make_usage(self.collector), **report_timings(self.model, self.collector)}
        return encode_named({**last, **cost}) + encode_named({"type": "message_stop"})

    def write_error(self, error: HttpError) -> bytes:
        return encode_named(make_error(error))

    def _write_step(self, step: BlockEvent) -> bytes:
        if step.what == "open":
            return self._open(EMPTY.get(step.kind) or make_tool_use(step.text))
        if step.what == "delta":
            kind, name = DELTAS[step.kind]
            return self._delta({"type": kind, name: step.text})
        return self._close()

    def _open(self, block: dict[str, Any]) -> bytes:
        self.block_count += 1
        start = {"type": "content_block_start", "index": self.block_count - 1}
        return encode_named({**start, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        head = {"type": "content_block_delta", "index": self.block_count - 1}
        return encode_named({**head, "delta": delta})

    def _close(self) -> bytes:
        return encode_named({"type": "content_block_stop", "index": self.block_count - 1})

    def _make_stop(self, calls: int) -> dict[str, Any]:
        if isinstance(self.reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": self.reason}
        reason = REASONS.get(self.finish or "stop", "end_turn")
        if calls and self.finish == "stop":
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": None}


def encode_named(value: dict[str, Any]) -> bytes:
    """An event with the name of its type."""
    return encode_event(value, value["type"])


def make_blocks(parsed: ParsedAnswer) -> list[dict[str, Any]]:
    """The content of a whole answer."""
    found: list[dict[str, Any]] = []
    if parsed.reasoning:
        found.append({"type": "thinking", "thinking": parsed.reasoning, "signature": ""})
    if parsed.content:
        found.append({"type": "text", "text": parsed.content})
    for call in parsed.calls:
        given = parse_arguments(call)
        found.append({**make_tool_use(call.name), "input": {} if given is None else given})
    return found


def make_tool_use(name: str) -> dict[str, Any]:
    """A tool-call block as it begins."""
    return {"type": "tool_use", "id": f"toolu_{uuid4().hex[:24]}", "name": name, "input": {}}


def make_usage(collector: Collector) -> dict[str, int]:
    """Anthropic's `usage`: tokens found in the cache are not part of the input."""
    return {
        "input_tokens": len(collector.request.tokens) - collector.cached,
        "output_tokens": collector.produced,
        "cache_read_input_tokens": collector.cached,
        "cache_creation_input_tokens": 0,
    }


def make_error(error: HttpError) -> dict[str, Any]:
    """Anthropic's error format."""
    fallback = "api_error" if error.status >= 500 else error.kind
    kind = KINDS.get(error.status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error.message}}
