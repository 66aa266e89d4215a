"""Dynamic batching: requests that are not streamed wait for one another before they are submitted.

Invariant: what is held is submitted once, when `preferred_batch` requests for an engine wait or the
oldest has waited for `batch_wait_ms`, or it is withdrawn; nothing is held longer.  Knows no
request: submitting is a function of the caller's, which does not raise.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from flyweight.server.settings import ServerSettings


class SubmitsTogether(Protocol):
    """An engine's client; what is submitted within `send_together` arrives as one."""

    def send_together(self) -> AbstractContextManager[None]: ...


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class TimerLoop(Protocol):
    """An event loop's clock, in seconds."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None]) -> Cancellable: ...


@dataclass(slots=True, eq=False)
class _HeldRequests:
    """The requests of one HTTP request, held until `due` at the latest."""

    count: int
    due: float
    submit: Callable[[], None]


@dataclass(slots=True)
class _FormingBatch:
    """What waits for one engine, oldest first; `timer` is set for the first of it."""

    members: list[_HeldRequests]
    timer: Cancellable


class RequestBatcher:
    """The batches that form, one an engine.  Without `loop`, on the event loop that runs."""

    def __init__(self, settings: ServerSettings, loop: TimerLoop | None = None) -> None:
        self.wait, self.preferred = settings.batch_wait_ms / 1000, settings.preferred_batch
        self._loop = loop
        self._forming: dict[SubmitsTogether, _FormingBatch] = {}

    @property
    def enabled(self) -> bool:
        """Whether any request is held."""
        return self.wait > 0

    def count_held(self, engine: SubmitsTogether) -> int:
        """The requests that are held for an engine."""
        batch = self._forming.get(engine)
        return 0 if batch is None else sum(one.count for one in batch.members)

    def hold(
        self, engine: SubmitsTogether, count: int, submit: Callable[[], None]
    ) -> Callable[[], None]:
        """Calls `submit`, for `count` requests, with their batch: now, if that makes it complete.
        Returns what withdraws them.
        """
        loop = self._get_loop()
        held = _HeldRequests(count, loop.time() + self.wait, submit)
        batch = self._forming.get(engine)
        if batch is None:
            self._forming[engine] = _FormingBatch([held], self._set_timer(engine, held))
        else:
            batch.members.append(held)
        if self.count_held(engine) >= self.preferred:
            self._submit(engine)
        return lambda: self._withdraw(engine, held)

    def submit_all(self) -> None:
        """Submits what is held: nothing will be added to it."""
        for engine in list(self._forming):
            self._submit(engine)

    def _submit(self, engine: SubmitsTogether) -> None:
        batch = self._forming.pop(engine)
        batch.timer.cancel()
        with engine.send_together():
            for one in batch.members:
                one.submit()

    def _withdraw(self, engine: SubmitsTogether, held: _HeldRequests) -> None:
        """Takes requests out of their batch, if it still forms; the next oldest sets the time."""
        batch = self._forming.get(engine)
        if batch is None or held not in batch.members:
            return
        oldest = batch.members[0]
        batch.members.remove(held)
        if held is not oldest:
            return
        batch.timer.cancel()
        if batch.members:
            batch.timer = self._set_timer(engine, batch.members[0])
        else:
            del self._forming[engine]

    def _set_timer(self, engine: SubmitsTogether, oldest: _HeldRequests) -> Cancellable:
        return self._get_loop().call_at(oldest.due, lambda: self._submit(engine))

    def _get_loop(self) -> TimerLoop:
        return self._loop or asyncio.get_running_loop()
