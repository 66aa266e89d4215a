"""What the writers of OpenAI's two completion routes share: ids, chunks, usage, a stream's end.

Invariant: every chunk of a stream has the same id, time and model.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from flyweight.server.apis.answer import AnswerGroup, get_collectors
from flyweight.server.apis.logprobs import TokenSpelling
from flyweight.server.apis.sampling_fields import SamplingBody
from flyweight.server.apis.usage import RunningUsage, report_usage
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import DONE, PING, EventTemplate, encode_event


class ChunkWriter:
    """Writes chunks that are a `kind` of object, whose ids begin with `prefix`."""

    media = "text/event-stream"
    ping = PING

    def __init__(self, options: SamplingBody, group: AnswerGroup, kind: str, prefix: str) -> None:
        self.model, self.collectors = group.model, get_collectors(group)
        stream = options.stream_options
        running = stream is not None and stream.running
        self.running = RunningUsage(self.collectors) if running else None
        self.ends_with_usage = (
            (stream is not None and (stream.include_usage or running))
            or bool(options.return_cache_explanation)
            or bool(options.return_cost)
            or self.model.settings.enable_force_include_usage
        )
        self.choices = options.n or 1  # of each prompt; a beam search has more
        self.begun: set[int] = set()  # choices with a chunk
        self.plain: dict[int, EventTemplate] = {}  # chunks of each choice that hold text alone
        self.spelling = TokenSpelling(self.model.tokenizer, options.return_tokens_as_token_ids)
        for collector in self.collectors:
            collector.interval = options.stream_interval or collector.interval
        self.id = f"{prefix}-{options.request_id or uuid4().hex}"
        self.head = {
            "id": self.id,
            "object": kind,
            "created": self.model.now(),
            "model": options.model or self.model.names[0],
            "system_fingerprint": None,
        }

    def begin(self) -> bytes:
        return b""

    def end(self) -> bytes:
        if not self.ends_with_usage:
            return DONE
        return encode_event({**self.head, "choices": [], **self.report_usage()}) + DONE

    def write_error(self, error: HttpError) -> bytes:
        return encode_event(error.body()) + DONE

    def write_chunk(self, choice: Mapping[str, Any]) -> bytes:
        chunk: dict[str, Any] = {**self.head, "choices": [choice]}
        if self.running is not None:
            chunk["usage"] = self.running.report()
        return encode_event(chunk)

    def report_usage(self) -> dict[str, Any]:
        return report_usage(self.model, self.collectors)
