"""Answers of /v1/chat/completions, whole and in chunks.

Invariant: the joined chunks of a stream are the message of the whole answer.  An exception is a
call that turns out to be invalid after its name was sent: its text follows as content.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from flyweight.outputs import CompletionOutput, Logprob
from flyweight.requests.collector import TextPiece
from flyweight.server.apis.answer import AnswerGroup
from flyweight.server.apis.logprobs import encode_chat_scores, encode_prompt_scores
from flyweight.server.apis.openai.chat_schema import ChatBody
from flyweight.server.apis.openai.chunk_writer import ChunkWriter
from flyweight.server.apis.openai.content_blocks import was_cut_off
from flyweight.server.apis.usage import report_attempts
from flyweight.server.transport.replies import EventTemplate, encode_event
from flyweight.text.tools.deltas import Delta, DeltaKind, ParsedAnswer
from flyweight.text.tools.parser import AnswerFormat, AnswerParser


class ChatWriter(ChunkWriter):
    """Writes one conversation's answers."""

    def __init__(self, body: ChatBody, reading: AnswerFormat, group: AnswerGroup) -> None:
        super().__init__(body, group, "chat.completion.chunk", "chatcmpl")
        (self.collector,) = self.collectors
        self.body, self.reading = body, reading
        self.echo = (body.continued or "") if body.echo else ""
        self.parsers: dict[int, AnswerParser] = {}  # by choice
        bare = not (body.logprobs or body.return_token_ids or self.running)
        self.bare = bare and reading.plain

    def write_reply(self) -> dict[str, Any]:
        found = self.collector.output().outputs[: self.choices]
        choices = [self._make_choice(choice) for choice in found]
        head = {**self.head, "object": "chat.completion", "service_tier": None}
        return {**head, "choices": choices, **self._describe_prompt(), **self.report_usage()}

    def write_piece(self, prompt: int, piece: TextPiece) -> bytes:
        first = b""
        if self.running is not None:
            self.running.note(prompt, piece)
        if piece.choice >= self.choices:  # a beam that is not among the best
            return first
        if piece.choice not in self.begun:
            prompt_facts = {} if self.begun else self._describe_prompt()
            self.begun.add(piece.choice)
            delta = {"role": "assistant", "content": self.echo}
            if self.running is not None:
                prompt_facts["usage"] = self.running.report(less=len(piece.tokens))
            first = encode_event(
                {**self.head, "choices": [_wrap_delta(piece.choice, delta)], **prompt_facts}
            )
        if self.bare and piece.finish is None:
            return first + self._write_plain(piece.choice, piece.text)
        one = self._make_delta_choice(piece)
        return first if one is None else first + self.write_chunk(one)

    def _write_plain(self, choice: int, text: str) -> bytes:
        """The chunk of a piece that only has text."""
        if not text:
            return b""
        found = self.plain.get(choice)
        if found is None:
            head = self.head
            found = EventTemplate(
                lambda t: {**head, "choices": [_wrap_delta(choice, {"content": t})]}
            )
            self.plain[choice] = found
        return found(text)

    def _get_prompt_text(self) -> str:
        """The rendered prompt, or the text of the tokens that were kept."""
        given, whole = self.collector, self.body.truncate_prompt_tokens is None
        if given.prompt is not None and whole:
            return given.prompt
        return given.tokenizer.decode(given.request.tokens, False)

    def _describe_prompt(self) -> dict[str, Any]:
        """The facts of the prompt in a reply, or in the first chunk."""
        found: dict[str, Any] = {}
        if self.body.prompt_logprobs is not None:
            found["prompt_logprobs"] = encode_prompt_scores(self.collector)
        if self.body.return_token_ids:
            found["prompt_token_ids"] = list(self.collector.request.tokens)
        if self.body.return_prompt_text:
            found["prompt_text"] = self._get_prompt_text()
        return found

    def _make_choice(self, choice: CompletionOutput) -> dict[str, Any]:
        parser = AnswerParser(self.reading)
        finish = choice.finish_reason
        deltas = parser.push(choice.text) + parser.finish(was_cut_off(finish, choice.stop_reason))
        one: dict[str, Any] = {
            "index": choice.index,
            "message": self._make_message(ParsedAnswer.of(deltas)),
            "logprobs": None,
            "finish_reason": _name_finish(finish, parser),
            "stop_reason": choice.stop_reason,
        }
        if choice.logprobs is not None:
            one["logprobs"] = self._make_scores(choice.logprobs)
        if self.body.return_token_ids:
            one["token_ids"] = choice.token_ids
        return one | report_attempts(choice.structured_output)

    def _make_message(self, found: ParsedAnswer) -> dict[str, Any]:
        text = self.echo + found.content
        content = None if found.calls and not text else text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if found.reasoning and self.body.include_reasoning is not False:
            message["reasoning"] = message["reasoning_content"] = found.reasoning
        if found.calls:
            message["tool_calls"] = [
                {"id": self._make_call_id(), "type": "function",
                 "function": {"name": call.name, "arguments": call.arguments}}
                for call in found.calls
            ]  # fmt: skip
        return message

    def _make_delta_choice(self, piece: TextPiece) -> dict[str, Any] | None:
        """A chunk's choice; None if there is nothing to send yet."""
        finish = piece.finish
        if self.reading.plain:
            delta = {"content": piece.text} if piece.text else {}
        else:
            parser = self._get_parser(piece.choice)
            deltas = parser.push(piece.text)
            if finish is not None:
                deltas += parser.finish(was_cut_off(finish, piece.reason))
                finish = _name_finish(finish, parser)
            delta = self._make_delta(deltas)
        body = self.body
        if not (delta or finish or self.running or body.return_token_ids or piece.logprobs):
            return None
        one = _wrap_delta(piece.choice, delta, finish)
        if piece.logprobs is not None:
            one["logprobs"] = self._make_scores(piece.logprobs)
        if piece.finish is not None:
            one["stop_reason"] = piece.reason
        if body.return_token_ids:
            one["token_ids"] = piece.tokens
        return one | report_attempts(piece.report)

    def _make_scores(self, found: Sequence[dict[int, Logprob]]) -> dict[str, Any]:
        return encode_chat_scores(found, self.body.most, self.spelling)

    def _get_parser(self, choice: int) -> AnswerParser:
        found = self.parsers.get(choice)
        if found is None:
            found = self.parsers[choice] = AnswerParser(self.reading)
        return found

    def _make_delta(self, deltas: Iterable[Delta]) -> dict[str, Any]:
        """What is new, as a chunk's delta."""
        words: dict[DeltaKind, list[str]] = {DeltaKind.CONTENT: [], DeltaKind.REASONING: []}
        calls: dict[int, dict[str, Any]] = {}
        arguments: dict[int, list[str]] = {}
        for kind, text, number in deltas:
            if kind in words:
                words[kind].append(text)
            elif kind is DeltaKind.NAME:
                calls[number] = {"index": number, "id": self._make_call_id(), "type": "function",
                                 "function": {"name": text}}  # fmt: skip
                arguments[number] = []
            elif kind is DeltaKind.ARGUMENTS:
                calls.setdefault(number, {"index": number, "function": {}})
                arguments.setdefault(number, []).append(text)
        found: dict[str, Any] = {}
        if words[DeltaKind.CONTENT]:
            found["content"] = "".join(words[DeltaKind.CONTENT])
        if words[DeltaKind.REASONING] and self.body.include_reasoning is not False:
            found["reasoning"] = found["reasoning_content"] = "".join(words[DeltaKind.REASONING])
        for number, call in calls.items():
            call["function"]["arguments"] = "".join(arguments[number])
        if calls:
            found["tool_calls"] = list(calls.values())
        return found

    def _make_call_id(self) -> str:
        short = self.reading.calls is not None and self.reading.calls.short_ids
        return uuid4().hex[:9] if short else f"call_{uuid4().hex[:24]}"


def _name_finish(finish: str | None, parser: AnswerParser) -> str | None:
    return "tool_calls" if finish == "stop" and parser.calls else finish


def _wrap_delta(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
