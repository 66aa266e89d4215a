"""The bodies of all requests together: bounded, given back, and short ones always let in."""

import asyncio
import json
import socket
from typing import Any

import pytest
from starlette.datastructures import Headers

from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.guard import ALWAYS, BodyReader
from http_server import Running, served

HALF = b"x" * (ALWAYS + 600_000)
GOOD = {"prompt": "Once", "max_tokens": 1}


def incoming(*parts: bytes, ends: bool = True) -> Any:
    """A `receive` of these parts; one that does not end waits for ever."""
    left = list(parts)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left) or not ends}

    return receive


def test_what_is_held_is_bounded_and_given_back() -> None:
    async def work() -> None:
        bodies = BodyReader(ServerSettings(max_total_body_bytes=1_000_000, body_timeout=60))
        waits = asyncio.create_task(bodies.read(Headers(), incoming(HALF, ends=False)))
        while not bodies.held:
            await asyncio.sleep(0)
        with pytest.raises(HttpError) as refusal:
            await bodies.read(Headers(), incoming(HALF))
        assert refusal.value.status == 503 and refusal.value.headers["retry-after"]
        short = b"x" * ALWAYS
        assert await bodies.read(Headers(), incoming(short)) == short
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert bodies.held == 0
        whole = await bodies.read(Headers(), incoming(HALF, HALF))  # alone it may be of any size
        assert bodies.held == len(whole) - ALWAYS
        bodies.free(len(whole))
        assert bodies.held == 0

    asyncio.run(work())


def begun(server: Running) -> socket.socket:
    """A connection whose body has come except for its last byte."""
    line = socket.create_connection(("127.0.0.1", server.port), 60)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(HALF) + 1}"
    line.sendall(head.encode() + b"\r\n\r\n" + HALF)
    return line


def test_unfinished_bodies_do_not_shut_out_short_ones() -> None:
    with served(server={"max_total_body_bytes": 1_000_000}) as server:
        lines = [begun(server)]
        large = json.dumps({"prompt": HALF.decode()}).encode()

        def refused() -> bool:
            got = server.post("/v1/completions", large)
            return got.status == 503 and got.json["error"]["code"] == "request_bytes_limit"

        server.until(refused)
        assert server.post("/v1/completions", GOOD).status == 200
        lines[0].close()
        server.until(lambda: server.post("/v1/completions", large).status == 400)
