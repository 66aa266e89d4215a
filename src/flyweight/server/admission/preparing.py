"""A request before it runs: its prompts are read and its constraints tried, which can take long.

Invariant: so many prepare at a time and no more; one that takes until its deadline, or whose client
goes, is given up, and what it waited for is not done for it any more.  Knows no dialect.
"""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.admission.queue import AdmissionQueue
from flyweight.server.transport.errors import make_timeout_error
from flyweight.server.transport.replies import ClientGone, wait_for_disconnect
from flyweight.server.transport.request_log import get_record


class Preparation:
    """One request's; `end` where it begins to run."""

    def __init__(self, queue: AdmissionQueue) -> None:
        """Raises `HttpError` where too many prepare."""
        queue.begin_preparation()
        self._queue = queue
        self._over = asyncio.Event()

    def end(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._queue.end_preparation()

    async def wait(self) -> None:
        await self._over.wait()


async def prepare_and_run(
    queue: AdmissionQueue, seconds: float, request: Request, work: Coroutine[Any, Any, Response]
) -> Response:
    """What `work` answers.  Until it runs (`Preparation.end`) it has `seconds` since the request
    came, and is given up where its client goes; from then on others see to that.
    """
    try:
        await request.body()  # before somebody else listens
        own = Preparation(queue)
    except BaseException:
        work.close()
        raise
    request.scope["preparation"] = own
    task = asyncio.ensure_future(work)
    running = asyncio.ensure_future(own.wait())
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    left = max(0.0, seconds - (time.monotonic() - get_record(request.scope).began))
    try:
        await asyncio.wait((task, running, leaving), timeout=left, return_when=FIRST_COMPLETED)
        if not task.done() and not running.done():
            raise ClientGone if leaving.done() else make_timeout_error(seconds)
        leaving.cancel()
        return await task
    finally:
        own.end()
        for one in (task, running, leaving):
            one.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
