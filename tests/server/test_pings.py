"""A stream that has nothing to say says so, and nothing else is changed by it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from flyweight.errors import ConfigError
from flyweight.server.apis.anthropic.messages_stream import MessageWriter
from flyweight.server.apis.ollama.handlers import OllamaWriter
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.replies import PING, EventStream
from http_server import Running, served

SOON = 0.02
TALK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
SLOW = {"FLYWEIGHT_TESTING": "1", "FLYWEIGHT_FAULT": "slow:ms=400"}


def sent(waits: list[float], ping: bytes = PING, seconds: float = SOON) -> list[dict[str, Any]]:
    """What a stream sends whose parts come after so many seconds each."""
    messages: list[dict[str, Any]] = []

    async def parts() -> AsyncGenerator[bytes]:
        for wait in waits:
            await asyncio.sleep(wait)
            yield b"data: x\n\n"

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def work() -> None:
        stream = EventStream(parts(), lambda: None, ping=ping, seconds=seconds)
        await stream({"type": "http"}, receive, send)
        await asyncio.sleep(3 * SOON)  # nothing follows the end

    asyncio.run(work())
    return messages


def test_silence_is_broken_by_comments() -> None:
    head, *rest = sent([10 * SOON, 0.0])
    assert head["type"] == "http.response.start" and rest[-1]["more_body"] is False
    said = [one["body"] for one in rest[:-1]]
    assert said[0] == PING and said[-2:] == [b"data: x\n\n"] * 2
    assert 2 <= said.count(PING) <= 10 and PING.startswith(b":")


def test_an_active_stream_needs_no_pings() -> None:
    assert PING not in [one.get("body") for one in sent([0.0] * 9, seconds=30.0)]


@pytest.mark.parametrize("ping, seconds", [(b"", SOON), (PING, 0.0)])
def test_there_may_be_none(ping: bytes, seconds: float) -> None:
    assert len(sent([5 * SOON], ping, seconds)) == 3


def test_how_long_is_an_option() -> None:
    assert ServerSettings(ping_interval=0).ping_interval == 0
    with pytest.raises(ConfigError, match="allowed: 0 seconds or more"):
        ServerSettings(ping_interval=-1)


def test_apis_have_their_own() -> None:
    kind, data, *_ = MessageWriter.ping.split(b"\n")
    assert kind == b"event: ping" and json.loads(data.removeprefix(b"data: ")) == {"type": "ping"}
    assert OllamaWriter.ping == b""


def test_a_slow_answer_is_whole_between_pings() -> None:
    """Steps take longer than a ping is away, so each part is behind one."""
    with served(server={"ping_interval": 0.1}, **SLOW) as server:
        got = server.post("/v1/chat/completions", TALK)
        assert got.body.count(PING) >= 2 and got.body.endswith(b"data: [DONE]\n\n")
        assert got.events[-1]["choices"][0]["finish_reason"]
        lines = [line for line in got.body.split(b"\n") if line]
        assert all(line.startswith((b"data: ", b": ping")) for line in lines)
        said = server.post("/v1/messages", {**TALK, "model": name_of(server)})
        assert said.body.count(b"event: ping\n") >= 2
        assert said.events[-1] == {"type": "message_stop"}
        refused = server.post("/v1/chat/completions", {**TALK, "temperature": -1})
        assert refused.status == 400


def name_of(server: Running) -> str:
    found: str = server.get("/v1/models").json["data"][0]["id"]
    return found
