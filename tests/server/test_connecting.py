"""The front end waits for an engine, and somebody else ends the waiting."""

import asyncio
import gc
import socket
from typing import Any

import pytest

from flyweight.errors import ConfigError
from flyweight.server import pipe
from flyweight.server.engine_client import EngineClient
from flyweight.server.engine_host import EngineHost


def make_client() -> EngineClient:
    return EngineClient(EngineHost(print), pipe.EngineSetup({}, 1.0))


@pytest.mark.parametrize("turns", range(6))
def test_a_start_that_is_given_up_leaves_no_traceback(turns: int) -> None:
    """Refused by what the front end reads, while the engine ends as well; at every moment of it."""
    said: list[dict[str, Any]] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: said.append(what))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        found = make_client()
        await found.host.connect(ours)
        found.begin_loading()
        waiting = asyncio.ensure_future(found.wait_until_ready())
        theirs.close()
        for _ in range(turns):
            await asyncio.sleep(0)
        found._settle(ConfigError("the engine ended before it was ready"))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        del waiting
        await found.host.close()

    asyncio.run(work())
    gc.collect()
    assert said == []


def test_waiting_requests_have_a_reason() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        found = make_client()
        await found.host.connect(ours)
        found.load()
        loading = asyncio.ensure_future(found.wait_until_ready())
        theirs.sendall(pipe.encode_frame(pipe.Failed("no such model")))
        with pytest.raises(ConfigError, match="no such model"):
            await loading
        theirs.close()
        await found.host.close()

    asyncio.run(work())
