"""Who may come in: a queue bounded by requests and by tokens, and nobody while the server ends.

Invariant: what is counted in is counted out once, whatever becomes of it.  Knows numbers only.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError

PREPARING = 16  # requests that may prepare even where fewer may wait
LONGEST_WAIT = 60  # seconds a client is told to stay away at most
PACE_OVER = 10.0  # seconds over which the pace of admissions is measured


@dataclass(slots=True)
class Reservation:
    """Requests of one HTTP request that wait to be computed."""

    requests: int
    tokens: int


@dataclass(slots=True)
class AdmissionQueue:
    """`requests` and `tokens` have come in and were not scheduled yet; `preparing` requests are
    before that.
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
        """One of them runs, or was given up."""
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

    def make_draining_error(self) -> HttpError:
        """Of a server that is being shut down: another may be there once it has drained."""
        away = max(1, math.ceil(min(LONGEST_WAIT, self.limits.shutdown_timeout)))
        return HttpError(
            503,
            "the server is shutting down",
            code="draining",
            headers={"retry-after": str(away)},
        )

    def make_timeout_error(self) -> HttpError:
        """Of a request that has waited too long."""
        return HttpError(
            429,
            f"not started within {self.limits.queue_timeout:g} seconds (--queue-timeout)",
            code="queue_timeout",
            headers={"retry-after": str(self.estimate_wait())},
        )

    def leave(self, place: Reservation, requests: int, tokens: int) -> None:
        """Some of a place's requests wait no longer."""
        requests, tokens = min(requests, place.requests), min(tokens, place.tokens)
        place.requests -= requests
        place.tokens -= tokens
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
        """What is too long ago to count; each is looked at once, however many there are."""
        oldest = self.clock() - PACE_OVER
        while self._left and self._left[0][0] <= oldest:
            self._lately -= self._left.popleft()[1]
