"""Requests before they run: so many and no more, within their deadline, and for whom is there."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.admission.queue import PREPARING, AdmissionQueue, Preparation, prepare_and_run
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.replies import ClientGone
from flyweight.server.transport.request_log import RequestRecord
from http_server import served

LONG = 60.0
SLOW = {  # a schema that takes long to compile
    "type": "object",
    "properties": {f"p{i}": {"type": "string", "format": "date-time"} for i in range(1200)},
}


class Client:
    """Sends an empty body, and leaves on request."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.sent = False

    async def receive(self) -> dict[str, Any]:
        if not self.sent:
            self.sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    def request(self, came: float | None = None) -> Request:
        visit = RequestRecord(time.monotonic() if came is None else came)
        return Request({"type": "http", "headers": [], "record": visit}, self.receive)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


class Work:
    """A route that waits for ever, or begins to run."""

    def __init__(self, begins: bool = False) -> None:
        self.begins, self.begun, self.ended = begins, asyncio.Event(), asyncio.Event()

    async def do(self, request: Request) -> Response:
        self.begun.set()
        try:
            if self.begins:
                request.scope["preparation"].end()
            else:
                await asyncio.Event().wait()
        finally:
            self.ended.set()
        return Response("there")


def test_no_work_is_done_for_a_client_that_left() -> None:
    async def work() -> None:
        door, client, route = AdmissionQueue(ServerSettings()), Client(), Work()
        request = client.request()
        task = asyncio.create_task(prepare_and_run(door, LONG, request, route.do(request)))
        await route.begun.wait()
        assert door.preparing == 1
        client.leaves.set()
        with pytest.raises(ClientGone):
            await task
        assert route.ended.is_set() and door.preparing == 0

    run(work)


def test_a_deadline_counts_from_the_arrival() -> None:
    async def work() -> None:
        door, client, route = AdmissionQueue(ServerSettings()), Client(), Work()
        request = client.request(time.monotonic() - LONG)
        with pytest.raises(HttpError) as refusal:
            await prepare_and_run(door, LONG, request, route.do(request))
        assert refusal.value.status == 504 and refusal.value.code == "deadline"
        assert door.preparing == 0

    run(work)


def test_a_running_request_prepares_no_more() -> None:
    async def work() -> None:
        door, client, route = AdmissionQueue(ServerSettings()), Client(), Work(begins=True)
        request = client.request()
        got = await prepare_and_run(door, LONG, request, route.do(request))
        assert got.body == b"there" and door.preparing == 0

    run(work)


def test_so_many_prepare_and_no_more() -> None:
    async def work() -> None:
        door = AdmissionQueue(ServerSettings(max_queued_requests=2))
        places = [Preparation(door) for _ in range(PREPARING)]
        route, request = Work(), Client().request()
        with pytest.raises(HttpError) as refusal:
            await prepare_and_run(door, LONG, request, route.do(request))
        assert refusal.value.status == 429 and refusal.value.headers["retry-after"]
        assert not route.begun.is_set()
        for place in places:
            place.end()
            place.end()
        assert door.preparing == 0

    run(work)


def test_a_schema_takes_no_longer_than_the_request_may() -> None:
    limits = {"request_timeout": 0.3, "schema_compile_timeout": 60.0}
    with served(server=limits) as server:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SLOW}}
        body = {"prompt": "Once", "max_tokens": 2, "response_format": form}
        got = server.post("/v1/completions", body)
        assert got.status == 504 and got.json["error"]["code"] == "deadline"
