"""The front end waits for an engine, and somebody else ends the waiting."""

import asyncio
import gc
import socket
from typing import Any

import pytest

from flyweight.errors import ConfigError
from flyweight.server import pipe
from flyweight.server.engine_client import EngineClient


def client() -> EngineClient:
    begin = pipe.EngineSetup({}, 1.0)
    return EngineClient(begin, lambda message: None, lambda reason: None)


@pytest.mark.parametrize("turns", range(6))
def test_a_start_that_is_given_up_leaves_no_traceback(turns: int) -> None:
    """Refused by what the front end reads, while the engine ends as well; at every moment of it."""
    said: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: said.append(what))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        found = client()
        found._closing = True
        connecting = asyncio.ensure_future(found.connect(ours))
        theirs.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        found._settle(ConfigError("the engine ended before it was ready"))
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        del connecting
        found._built = None
        ours.close()

    asyncio.run(work())
    gc.collect()
    assert said == []


def test_waiting_requests_have_a_reason() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        found = client()
        connecting = asyncio.ensure_future(found.connect(ours))
        theirs.sendall(pipe.encode_frame(pipe.Failed("no such model")))
        with pytest.raises(ConfigError, match="no such model"):
            await connecting
        theirs.close()
        found._closing = True
        await found.close()

    asyncio.run(work())
