"""Counts and logs every HTTP request, also refused ones; traces those that may run a model.

Invariant: requests and responses are not changed.  Of the client's text only the path and ids are
logged, bounded and escaped; no body and no answer.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyweight.requests.collector import Collector, VectorCollector
from flyweight.server.observability.counters import HttpCounts
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.spans import RequestTrace
from flyweight.server.observability.tracing import RequestTracer

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CUT = 499  # the client disconnected before the response began
CONTEXT = ("traceparent", "tracestate")  # headers of the trace that a request is part of


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request: `collectors` are those of its prompts, `id` is its x-request-id, `reply`
    the id of its reply.  It `began`, its prompts were `prepared` for `model`, and it was computed
    for the first time (`started`); 0 before that.  It waited `loading` seconds for models to be
    loaded.
    """

    began: float
    status: int = CUT
    given: int = 0  # bytes of the answer
    whole: bool = False
    route: str = ""
    id: str = ""
    reply: str = ""
    collectors: Sequence[Collector | VectorCollector] = field(default_factory=tuple)
    model: str = ""
    prepared: float = 0.0
    started: float = 0.0
    loading: float = 0.0

    def note_start(self) -> None:
        self.started = self.started or time.monotonic()


def get_record(scope: Any) -> RequestRecord:
    """The record of a request that passed `RequestLog`; otherwise a new one."""
    found = scope.get("record")
    return found if isinstance(found, RequestRecord) else RequestRecord(time.monotonic())


class RequestLog:
    """ASGI around an app.  `routes` are paths without parameters; successful requests of `polled`
    ones are counted, not logged.  `log` is None if requests are not logged, `tracer` if none is
    traced; else requests of `traced` paths are.
    """

    def __init__(
        self,
        app: ASGIApp,
        counts: HttpCounts,
        log: ServerLog | None,
        routes: Collection[str],
        polled: Collection[str],
        tracer: RequestTracer | None = None,
        traced: Collection[str] = (),
    ) -> None:
        self.app, self.counts, self.log = app, counts, log
        self.routes, self.polled = frozenset(routes), frozenset(polled)
        self.tracer, self.traced = tracer, frozenset(traced)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = RequestRecord(time.monotonic())
        scope["record"] = record

        def sent(message: Message) -> Any:  # no coroutine of its own: it is called once a chunk
            if message["type"] == "http.response.body":
                record.given += len(message.get("body", b""))
                record.whole = not message.get("more_body", False)
            elif message["type"] == "http.response.start":
                record.status = message["status"]
            return send(message)

        self.counts.active += 1
        try:
            await self.app(scope, receive, sent)
        finally:
            self.counts.active -= 1
            self._end(scope, record)

    def _end(self, scope: Scope, record: RequestRecord) -> None:
        path = scope["path"]
        route_path = get_route_path(scope)
        route = record.route or (route_path if route_path in self.routes else "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        seconds = time.monotonic() - record.began
        status = f"{record.status // 100}xx"
        size = Headers(scope=scope).get("content-length", "0")
        taken = int(size) if size.isdecimal() and len(size) < 20 else 0
        self.counts.note((route, method, status), taken, record.given, seconds)
        if self.tracer is not None and route in self.traced:
            self.tracer.send(make_trace(scope, record, method, route))
        if self.log is None or (route in self.polled and record.status == 200):
            return
        self.log.event(
            "request", method=method, path=path, status=record.status,
            seconds=round(seconds, 6), bytes=record.given,
            client_disconnected=None if record.whole else True,
            request_id=record.id or None, reply=record.reply or None,
            load_ms=round(1000 * record.loading, 3) or None,
            **describe_prompts(record.collectors),
        )  # fmt: skip


def make_trace(scope: Scope, record: RequestRecord, method: str, route: str) -> RequestTrace:
    """A request that ends now."""
    headers = Headers(scope=scope)
    return RequestTrace(
        method, route, record.status, record.whole, record.began, record.prepared, record.started,
        time.monotonic(), record.model, record.id, record.reply, record.collectors,
        {name: headers[name] for name in CONTEXT if name in headers}, record.loading,
    )  # fmt: skip


def describe_prompts(collectors: Sequence[Collector | VectorCollector]) -> dict[str, object]:
    """The prompts of a request: internal id, tokens, and times."""
    if not collectors:
        return {}
    known = [c for c in collectors if isinstance(c, Collector)]
    found: dict[str, object] = {
        "id": collectors[0].request.id,
        "prompts": len(collectors) if len(collectors) > 1 else None,
        "prompt_tokens": sum(len(c.request.tokens) for c in collectors),
        "cached_tokens": sum(c.cached for c in known),
        "tokens": sum(c.produced for c in known),
    }
    first = known[0].metrics() if known else None
    if first is not None and first.total:
        found["queue_ms"] = round(1000 * first.queued, 3)
        found["ttft_ms"] = round(1000 * first.ttft, 3)
    return found
