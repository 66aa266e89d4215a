"""Admission: a queue bounded by requests and tokens, and a bounded number that prepare for it.

Invariant: what is counted in is counted out once, also when the client disconnects or the request
fails.  Preparing (reading prompts, checking constraints) ends at the request's deadline or when its
client disconnects.  Knows no API.
"""

import asyncio
import math
import time
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, make_timeout_error
from flyweight.server.transport.replies import ClientGone, wait_for_disconnect
from flyweight.server.transport.request_log import get_record

PREPARING = 16  # requests that may prepare even where fewer may wait
LONGEST_WAIT = 60  # the longest Retry-After, in seconds
PACE_OVER = 10.0  # seconds over which the pace of admissions is measured


@dataclass(slots=True)
class Reservation:
    """The requests of one HTTP request that wait to be scheduled."""

    requests: int
    tokens: int


@dataclass(slots=True)
class AdmissionQueue:
    """`requests` and `tokens` were accepted and not scheduled yet; `preparing` are requests before
    that.
    """

    limits: ServerSettings
    clock: Callable[[], float] = time.monotonic
    requests: int = 0
    tokens: int = 0
    preparing: int = 0
    draining: bool = False
    refused: dict[str, int] = field(default_factory=lambda: {"requests": 0, "tokens": 0})
    _left: deque[tuple[float, int]] = field(default_factory=deque)  # when, and of how many tokens
    _lately: int = 0  # tokens of these

    def begin_preparation(self) -> None:
        """Raises `HttpError` where too many requests are being read, or none is taken any more."""
        if self.draining:
            raise self.make_draining_error()
        most = max(self.limits.max_queued_requests, PREPARING)
        if self.preparing >= most:
            self.refused["requests"] += 1
            raise HttpError(
                429,
                f"queue full: {self.preparing} requests are being prepared (max {most})",
                code="queue_full",
                headers={"retry-after": str(self.estimate_wait())},
            )
        self.preparing += 1

    def end_preparation(self) -> None:
        """One request runs now, or was cancelled."""
        self.preparing -= 1

    def enter(self, requests: int, tokens: int) -> Reservation:
        """Raises `HttpError` where there is no room.  One that waits alone may be of any size."""
        if self.draining:
            raise self.make_draining_error()
        limits = self.limits
        many = self.requests + requests > limits.max_queued_requests
        long = self.tokens + tokens > limits.max_queued_tokens
        if (many or long) and self.requests:
            self.refused["requests" if many else "tokens"] += 1
            raise HttpError(
                429,
                f"queue full: {self.requests} requests of {self.tokens} tokens queued (max "
                f"{limits.max_queued_requests} requests or {limits.max_queued_tokens} tokens)",
                code="queue_full",
                headers={"retry-after": str(self.estimate_wait())},
            )
        self.requests += requests
        self.tokens += tokens
        return Reservation(requests, tokens)

    def measure_fill(self) -> float:
        """The share of the queue that is taken, by requests or by tokens, whichever is more."""
        limits = self.limits
        taken = self.requests / limits.max_queued_requests, self.tokens / limits.max_queued_tokens
        return min(1.0, max(taken))

    def make_draining_error(self) -> HttpError:
        """The error while the server shuts down; another server may be there once it has
        drained.
        """
        away = max(1, math.ceil(min(LONGEST_WAIT, self.limits.shutdown_timeout)))
        return HttpError(
            503,
            "the server is shutting down",
            code="draining",
            headers={"retry-after": str(away)},
        )

    def make_timeout_error(self) -> HttpError:
        """The error of a request that has waited too long."""
        return HttpError(
            429,
            f"not started within {self.limits.queue_timeout:g} seconds (--queue-timeout)",
            code="queue_timeout",
            headers={"retry-after": str(self.estimate_wait())},
        )

    def leave(self, reservation: Reservation, requests: int, tokens: int) -> None:
        """Some of a reservation's requests do not wait any more."""
        requests, tokens = min(requests, reservation.requests), min(tokens, reservation.tokens)
        reservation.requests -= requests
        reservation.tokens -= tokens
        self.requests -= requests
        self.tokens -= tokens
        if tokens:
            self._left.append((self.clock(), tokens))
            self._lately += tokens
            self._forget()

    def estimate_wait(self) -> int:
        """Seconds until about half of the queue is gone, at the pace of the last seconds."""
        self._forget()
        if not self._lately:
            return 5
        seconds = self.tokens / 2 / (self._lately / PACE_OVER)
        return max(1, min(LONGEST_WAIT, math.ceil(seconds)))

    def _forget(self) -> None:
        """Drops what left the queue too long ago to count."""
        oldest = self.clock() - PACE_OVER
        while self._left and self._left[0][0] <= oldest:
            self._lately -= self._left.popleft()[1]


class Preparation:
    """One request's preparation; `end` is called when it starts to run."""

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
    """The response of `work`.  Until it runs (`Preparation.end`) it has `seconds` since the request
    arrived, and is cancelled when its client disconnects; after that the request group handles
    both.
    """
    try:
        await request.body()  # before disconnects are awaited
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
