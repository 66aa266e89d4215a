"""Answers of /v1/responses, whole and as events, with the log-probabilities of each part.

Invariant: events are numbered without a gap; an item is added before its parts and done after them;
the last event's response is the whole answer.  Log-probabilities of a part do not depend on how its
tokens arrived; a token whose text is in two parts belongs to the first.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Raw

from flyweight.outputs import CompletionOutput
from flyweight.requests.collector import Collector, TextPiece
from flyweight.server.admission.request_group import RequestGroup
from flyweight.server.apis.answer import get_collectors
from flyweight.server.apis.logprobs import Entry, TokenSpelling, encode_chat_scores
from flyweight.server.apis.openai.content_blocks import (
    BlockEvent,
    ContentBlocks,
    parse_answer,
    parse_arguments,
)
from flyweight.server.apis.usage import report_attempts, report_timings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import PING, encode_event
from flyweight.text.tools.deltas import DeltaKind, ParsedCall
from flyweight.text.tools.parser import AnswerFormat

NAMES = {DeltaKind.CONTENT: "output_text", DeltaKind.REASONING: "reasoning_text"}
CUTS = {"length": "max_output_tokens", "repetition": "repetition"}  # why a response is incomplete
NONE = Raw(b"[]")  # no log-probabilities


class PartScores:
    """Log-probabilities of the content parts of one choice, with `most` alternatives.  The answer
    is parsed token by token (`split_tokens`), so that each event belongs to the newest token.
    """

    def __init__(self, collector: Collector, most: int, spelling: TokenSpelling) -> None:
        params, special = collector.request.params, collector.tokenizer.special_ids
        self.hidden = special if params.skip_special_tokens else frozenset()
        self.most, self.spelling = most, spelling
        self.detokenizer = collector.make_detokenizer()
        # texts that are in no part yet, and their tokens' entries that were not written
        self.waiting: list[tuple[str, Entry | None]] = []
        self.follows = True  # whether content now goes on where the last of it ended
        self.runs: list[bytes] = []  # of the part that is open, encoded once

    def split_tokens(self, piece: TextPiece) -> Iterator[TextPiece]:
        """Splits a piece into pieces of one token; text that the end adds belongs to the last."""
        left, last = piece.text, len(piece.tokens) - 1
        if last < 0:
            if self.waiting:
                text, entry = self.waiting[-1]
                self.waiting[-1] = (text + left, entry)
            yield piece
        for i, (token, entry) in enumerate(zip(piece.tokens, piece.logprobs or (), strict=True)):
            size = len(self.detokenizer.push([token])) if i < last else len(left)
            text, left = left[:size], left[size:]
            if token not in self.hidden:
                self.waiting.append((text, entry))
            end = (piece.finish, piece.reason) if i == last else (None, None)
            yield TextPiece(piece.choice, text, [token], [entry], *end)

    def step(self, step: BlockEvent) -> msgspec.Raw:
        """The entries of an event: of a delta its tokens, at the end of a part all of them."""
        if step.kind is not DeltaKind.CONTENT:
            self.follows = False
            if step.kind is DeltaKind.REASONING and step.what == "delta":
                del self.waiting[:-1]  # the newest may go on as content
            return _join([])
        if step.what == "open":
            self.runs = []
        if step.what != "delta":
            return self.part()
        run = bytes(encode_chat_scores(self._take(step.text), self.most, self.spelling)["content"])[
            1:-1
        ]
        if run:
            self.runs.append(run)
        return _join([run])

    def part(self) -> msgspec.Raw:
        return _join(self.runs)

    def score_answer(self, choice: CompletionOutput, blocks: ContentBlocks) -> msgspec.Raw:
        """The entries of all content of a whole answer."""
        ids, finish = list(choice.token_ids), choice.finish_reason
        answer = TextPiece(0, choice.text, ids, choice.logprobs, finish, choice.stop_reason)
        runs: list[bytes] = []
        for piece in self.split_tokens(answer):
            for step in blocks.read_piece(piece):
                self.step(step)
                if step.what == "close" and step.kind is DeltaKind.CONTENT:
                    runs += self.runs
        return _join(runs)

    def _take(self, text: str) -> list[Entry]:
        """The entries of a text that continues the one before, or is the newest.  Marks and blanks
        between texts belong to no part.
        """
        waiting = "".join(one for one, _ in self.waiting)
        on = self.follows and waiting.startswith(text)
        begin = 0 if on else max(0, waiting.rfind(text))
        self.follows = True
        end = begin + len(text)
        found: list[Entry] = []
        kept: list[tuple[str, Entry | None]] = []
        at = 0
        for one, entry in self.waiting:
            first, at = at, at + len(one)
            if entry is not None and first < end and (at > begin or first == begin):
                found.append(entry)
                entry = None
            if at > end or first >= end:
                kept.append((one[max(0, end - first) :], entry))
        self.waiting = kept
        return found


def _join(runs: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(runs) + b"]")


class ResponseWriter:
    """Writes one response; `head` has its fields other than the answer."""

    media = "text/event-stream"
    ping = PING

    def __init__(
        self, head: dict[str, Any], reading: AnswerFormat, most: int | None, group: RequestGroup
    ) -> None:
        """With `most` alternatives per token, or without log-probabilities (None)."""
        self.model = group.model
        (self.collector,) = get_collectors(group)
        spelling = TokenSpelling(self.model.tokenizer)
        self.scores = None if most is None else PartScores(self.collector, most, spelling)
        self.reading, self.blocks = reading, ContentBlocks(reading)
        self.id = head.get("id") or f"resp_{uuid4().hex}"
        self.head = {"id": self.id, "object": "response", **head}
        self.output: list[dict[str, Any]] = []  # items that are done
        self.item: dict[str, Any] = {}  # the one that is not
        self.finish: str | None = None
        self.sent = 0

    def write_reply(self) -> dict[str, Any]:
        (choice,) = self.collector.output().outputs
        said = parse_answer(self.reading, choice)
        for kind, text in (
            (DeltaKind.REASONING, said.reasoning),
            (DeltaKind.CONTENT, said.content),
        ):
            if text:
                known = NONE
                if self.scores is not None and kind is DeltaKind.CONTENT:
                    known = self.scores.score_answer(choice, self.blocks)
                self.output.append(self._complete_item(make_item(kind), kind, text, known))
        self.finish = choice.finish_reason
        if self.finish in CUTS and self.output and not said.calls:
            self.output[-1]["status"] = _name_status(False)
        self.output += [
            {**make_call(call), "status": _name_status(parse_arguments(call) is not None)}
            for call in said.calls
        ]
        return self._make_response()

    def begin(self) -> bytes:
        response = {**self.head, **make_empty_fields("in_progress")}
        return b"".join(
            self._write_event(f"response.{name}", response=response)
            for name in ("created", "in_progress")
        )

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        pieces = [piece] if self.scores is None else self.scores.split_tokens(piece)
        return b"".join([self._write_steps(one) for one in pieces])

    def end(self) -> bytes:
        response = self._make_response()
        return self._write_event(f"response.{response['status']}", response=response)

    def write_error(self, error: HttpError) -> bytes:
        said = {"code": error.code, "message": error.message}
        failure = {**self.head, **make_empty_fields("failed"), "error": said}
        return self._write_event("error", **said, param=error.param) + self._write_event(
            "response.failed", response=failure
        )

    def _write_steps(self, piece: TextPiece) -> bytes:
        """The events of a piece.  Of the items that end with the answer only the last was cut
        off.
        """
        steps = self.blocks.read_piece(piece)
        events = [self._write_step(step) for step in steps[:-1]]
        self.finish = piece.finish
        return b"".join(events + [self._write_step(step) for step in steps[-1:]])

    def _write_step(self, step: BlockEvent) -> bytes:
        known = NONE if self.scores is None else self.scores.step(step)
        return (
            self._write_call(step) if step.kind is DeltaKind.NAME else self._write_text(step, known)
        )

    def _write_text(self, step: BlockEvent, known: Raw) -> bytes:
        """An event of text, whose log-probabilities are `known`, or of reasoning."""
        kind, name = step.kind, NAMES[step.kind]
        if step.what == "open":
            self.item = make_item(kind)
            added = {"output_index": len(self.output), "item": {**self.item, "content": []}}
            return self._write_event("response.output_item.added", **added) + self._write_event(
                "response.content_part.added", **self._locate(), part=make_part(kind, "", NONE)
            )
        scores = {"logprobs": known} if kind is DeltaKind.CONTENT else {}
        if step.what == "delta":
            return self._write_event(
                f"response.{name}.delta", **self._locate(), delta=step.text, **scores
            )
        place = self._locate()
        found = self._write_event(f"response.{name}.done", **place, text=step.text, **scores)
        part = make_part(kind, step.text, known)
        found += self._write_event("response.content_part.done", **place, part=part)
        return found + self._close(self._complete_item(self.item, kind, step.text, known))

    def _write_call(self, step: BlockEvent) -> bytes:
        """An event of a call."""
        if step.what == "open":
            self.item = make_call(ParsedCall(step.text))
            added = {"output_index": len(self.output), "item": self.item}
            return self._write_event("response.output_item.added", **added)
        place = self._locate()
        del place["content_index"]
        name = "response.function_call_arguments"
        if step.what == "delta":
            return self._write_event(f"{name}.delta", **place, delta=step.text)
        said = {"name": self.item["name"], "arguments": step.text}
        found = self._write_event(f"{name}.done", **place, **said)
        item = {**self.item, "arguments": step.text, "status": _name_status(step.complete)}
        return found + self._close(item)

    def _close(self, item: dict[str, Any]) -> bytes:
        self.output.append(item)
        index = len(self.output) - 1
        return self._write_event("response.output_item.done", output_index=index, item=item)

    def _locate(self) -> dict[str, Any]:
        return {
            "item_id": self.item["id"],
            "output_index": len(self.output),
            "content_index": 0,
        }

    def _complete_item(
        self, item: dict[str, Any], kind: DeltaKind, text: str, known: Raw
    ) -> dict[str, Any]:
        status = _name_status(self.finish not in CUTS)
        return {**item, "status": status, "content": [make_part(kind, text, known)]}

    def _write_event(self, name: str, /, **facts: Any) -> bytes:
        self.sent += 1
        return encode_event({"type": name, "sequence_number": self.sent - 1, **facts}, name)

    def _make_response(self) -> dict[str, Any]:
        cut = CUTS.get(self.finish or "")
        prompt, made = len(self.collector.request.tokens), self.collector.produced
        return {
            **self.head,
            **make_empty_fields("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": cut} if cut else None,
            "output": self.output,
            **report_attempts(self.collector.choices[0].report),
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {
                    "cached_tokens": self.collector.cached,
                    "cache_write_tokens": 0,
                },
                "output_tokens": made,
                "output_tokens_details": {"reasoning_tokens": self._count_reasoning()},
                "total_tokens": prompt + made,
            },
            **report_timings(self.model, self.collector),
        }

    def _count_reasoning(self) -> int:
        """The tokens of the reasoning's text."""
        thoughts = [item["content"] for item in self.output if item["type"] == "reasoning"]
        text = "".join(part["text"] for content in thoughts for part in content)
        tokenizer = self.collector.tokenizer
        return len(tokenizer.encode(text, add_special=False)) if text else 0


def _name_status(whole: bool) -> str:
    return "completed" if whole else "incomplete"


def make_empty_fields(status: str) -> dict[str, Any]:
    """A response's fields before there is an answer."""
    return {
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }


def make_item(kind: DeltaKind) -> dict[str, Any]:
    """An item of text or reasoning as it begins."""
    if kind is DeltaKind.REASONING:
        head = {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": []}
    else:
        head = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
    return {**head, "status": "in_progress"}


def make_part(kind: DeltaKind, text: str, known: Raw) -> dict[str, Any]:
    if kind is DeltaKind.REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": known}


def make_call(call: ParsedCall) -> dict[str, Any]:
    """An item that is a call, as it begins."""
    return {
        "id": f"fc_{uuid4().hex}",
        "type": "function_call",
        "call_id": f"call_{uuid4().hex[:24]}",
        "name": call.name,
        "arguments": call.arguments,
        "status": "in_progress",
    }
