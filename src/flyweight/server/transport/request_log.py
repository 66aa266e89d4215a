"""Sees every HTTP request from outside, refused ones too: counts it and gives it a line in the log.

Invariant: what passes through is not changed, and no label or word is a client's own but the path
and its ids, bounded and escaped.  Knows no route's body and no answer's text.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette._utils import get_route_path
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyweight.requests.collector import Collector, VectorCollector
from flyweight.server.observability.counters import HttpCounts, LogsEvents

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CUT = 499  # the status of an answer nobody waited for, before it began


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request: `collectors` are those of the prompts it ran, `id` is its x-request-id,
    `reply` the id its reply bears.
    """

    began: float
    status: int = CUT
    given: int = 0  # bytes of the answer
    whole: bool = False
    route: str = ""
    id: str = ""
    reply: str = ""
    collectors: Sequence[Collector | VectorCollector] = field(default_factory=tuple)


def get_record(scope: Any) -> RequestRecord:
    """The visit of a request that came through `RequestLog`; one of its own where it did not."""
    found = scope.get("visit")
    return found if isinstance(found, RequestRecord) else RequestRecord(time.monotonic())


class RequestLog:
    """ASGI around an app.  `routes` are the paths that are served as they stand; `log` is none
    where requests are not logged.
    """

    def __init__(
        self, app: ASGIApp, counts: HttpCounts, log: LogsEvents | None, routes: Collection[str]
    ) -> None:
        self.app, self.counts, self.log = app, counts, log
        self.routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = RequestRecord(time.monotonic())
        scope["visit"] = visit

        def sent(message: Message) -> Any:  # no coroutine of its own: it is called once a chunk
            if message["type"] == "http.response.body":
                visit.given += len(message.get("body", b""))
                visit.whole = not message.get("more_body", False)
            elif message["type"] == "http.response.start":
                visit.status = message["status"]
            return send(message)

        self.counts.active += 1
        try:
            await self.app(scope, receive, sent)
        finally:
            self.counts.active -= 1
            self._end(scope, visit)

    def _end(self, scope: Scope, visit: RequestRecord) -> None:
        path = scope["path"]
        asked = get_route_path(scope)
        route = visit.route or (asked if asked in self.routes else "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        seconds = time.monotonic() - visit.began
        status = f"{visit.status // 100}xx"
        size = Headers(scope=scope).get("content-length", "0")
        taken = int(size) if size.isdecimal() and len(size) < 20 else 0
        self.counts.note((route, method, status), taken, visit.given, seconds)
        if self.log is None:
            return
        self.log.event(
            "request", method=method, path=path, status=visit.status,
            seconds=round(seconds, 6), bytes=visit.given,
            client_disconnected=None if visit.whole else True,
            request_id=visit.id or None, reply=visit.reply or None,
            **describe_prompts(visit.collectors),
        )  # fmt: skip


def describe_prompts(collectors: Sequence[Collector | VectorCollector]) -> dict[str, object]:
    """Of the prompts of a request: its internal id, tokens, and where the time went."""
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
