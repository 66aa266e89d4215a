"""One stream from a replica to the server, which carries the frames of all its requests.

A request is a call of its own, which lasts as long as it does, so that Ray Serve counts and drains
requests.  Its frames are sent over the replica's channel, all those of a step of its engine in one
item, as most of what Ray takes is for each item.  The server opens a channel with the first
request; it ends once nothing has run for `IDLE` seconds, since Ray Serve ends a replica when no
call is left.

Invariant: frames of a request arrive in order and once, its end after them.  What no channel has
taken waits for the next one, and a channel ends with nothing left behind.  Knows no Ray and no
message.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Protocol

import msgspec

from flyweight.errors import EngineError
from flyweight.parallel.cluster import END, GONE

IDLE = 1.0  # seconds without a request after which a channel ends
CUT = b"cut"  # in place of `END` where a request's frames ended without it
CLOSED = b"closed"  # the last item of a channel that has ended by itself
LARGEST = 64 << 10  # bytes of an item; from 100 KiB, Ray carries one by its object store

Frames = list[tuple[int, bytes]]  # each with the number of its request
Queue = asyncio.Queue["bytes | BaseException"]
DECODER = msgspec.msgpack.Decoder(Frames)
ENCODER = msgspec.msgpack.Encoder()


class Call(Awaitable[bytes], Protocol):
    """A request's own call: `GONE` where the replica does not take it."""

    def cancel(self) -> None: ...


class Outlet:
    """The replica's side: frames until a channel takes them."""

    def __init__(self, idle: float = IDLE) -> None:
        self.idle = idle
        self._frames: Frames = []
        self._running = 0  # requests
        self._changed = asyncio.Event()
        self._newest = 0  # channels so far

    async def carry(self, number: int, frames: AsyncIterator[bytes]) -> None:
        """Sends what answers a request, and that it has ended."""
        self._running += 1
        last = CUT
        try:
            async for last in frames:
                self._put(number, last)
            if last != END:
                self._put(number, CUT)
        finally:
            self._running -= 1
            self._changed.set()

    async def stream(self) -> AsyncIterator[bytes]:
        """Items of the newest channel; an older one ends.

        Streams that got a frame in one turn of the event loop have all put it here when the waiting
        channel wakes, as it was put behind them: a step is one item.
        """
        self._newest += 1
        number = self._newest
        self._changed.set()
        while await self._wait(number):
            frames, self._frames = self._frames, []
            for item in encode_items(frames):
                yield item
        if number == self._newest:
            yield CLOSED

    def _put(self, number: int, data: bytes) -> None:
        self._frames.append((number, data))
        self._changed.set()

    async def _wait(self, number: int) -> bool:
        """Until this channel has something to take, or is to end."""
        while number == self._newest:
            if self._frames:
                return True
            self._changed.clear()
            if self._running:
                await self._changed.wait()
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self.idle)
                continue
            if not self._running and not self._frames:
                return False
        return False


class Inlet:
    """The server's side of one replica: `open` calls it for a channel."""

    def __init__(self, open: Callable[[], AsyncGenerator[bytes]]) -> None:
        self._open = open
        self._queues: dict[int, Queue] = {}
        self._reading: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[bytes]] = set()

    @property
    def idle(self) -> bool:
        """Whether it has no request and no channel."""
        return not self._queues and self._reading is None

    async def receive(self, number: int, call: Call) -> AsyncGenerator[bytes]:
        """The frames of a request, with `END` at last, or `GONE` alone.  Raises what its call or
        the channel raises.  Where its reader leaves, it cancels the call.
        """
        queue = self._queues[number] = Queue()
        task = self._follow(call, queue)
        self._begin()
        data: bytes | None = None
        try:
            while data not in (END, CUT):
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                if found == GONE and data is not None:
                    raise EngineError("a replica refused a request that it had begun to answer")
                data = found
                if data != CUT:
                    yield data
                if data == GONE:
                    return
        finally:
            self._queues.pop(number, None)
            if data not in (END, CUT) and not task.done():
                with suppress(Exception):  # the replica may be gone
                    call.cancel()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    # --- the request's own call ---

    def _follow(self, call: Call, queue: Queue) -> "asyncio.Task[bytes]":
        """That it has succeeded says nothing: the last frames may still be on their way."""

        def settle(task: "asyncio.Task[bytes]") -> None:
            self._calls.discard(task)
            if task.cancelled():
                queue.put_nowait(EngineError("the call of a request was cancelled"))
            elif error := task.exception():
                queue.put_nowait(error)
            elif task.result() == GONE:
                queue.put_nowait(GONE)

        task = asyncio.get_running_loop().create_task(await_call(call))
        self._calls.add(task)
        task.add_done_callback(settle)
        return task

    # --- the channel ---

    def _begin(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_all())

    async def _read_all(self) -> None:
        """One channel after another, for as long as there are requests.  A replica that refuses one
        has sent nothing of those that wait for it: a channel ends with nothing left behind.
        """
        try:
            while self._queues:
                if not await self._read():
                    self._end_all(GONE)
        except asyncio.CancelledError:  # also of Ray, where a call was cancelled in the replica
            self._end_all(EngineError("the channel of a replica was cancelled"))
            raise
        except Exception as error:  # of Ray's many kinds
            self._end_all(error)
        finally:
            self._reading = None

    async def _read(self) -> bool:
        """One channel, until it ends; whether the replica took it."""
        async with aclosing(self._open()) as items:
            async for item in items:
                if item in (GONE, CLOSED):
                    return item == CLOSED
                for number, data in DECODER.decode(item):
                    if queue := self._queues.get(number):
                        queue.put_nowait(data)
        raise EngineError("the channel of a replica was cut")

    def _end_all(self, last: bytes | Exception) -> None:
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.put_nowait(last)


async def await_call(call: Call) -> bytes:
    return await call


def encode_items(frames: Frames) -> Iterator[bytes]:
    """As few as their size allows."""
    part: Frames = []
    size = 0
    for one in frames:
        if part and size + len(one[1]) > LARGEST:
            yield ENCODER.encode(part)
            part, size = [], 0
        part.append(one)
        size += len(one[1])
    if part:
        yield ENCODER.encode(part)
