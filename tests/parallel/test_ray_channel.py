"""Frames of many requests over one channel: none is lost or comes twice, whatever ends first."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from typing import Any

import pytest

from flyweight.errors import EngineError
from flyweight.parallel import ray_channel
from flyweight.parallel.cluster import END, GONE
from flyweight.parallel.ray_channel import CLOSED, DECODER, LARGEST, Inlet, Outlet, encode_items

IDLE = 0.05


class Call:
    """A request's call, as Ray Serve's: it goes on where its reader is cancelled."""

    def __init__(self, work: Awaitable[bytes]) -> None:
        self.task = asyncio.ensure_future(work)
        self.cancels = 0

    def __await__(self) -> Generator[Any, None, bytes]:
        return asyncio.shield(self.task).__await__()

    def cancel(self) -> None:
        self.cancels += 1
        self.task.cancel()


class Replica:
    """A replica whose requests answer with what is put in their queues, and the way to it: `delay`
    gives the seconds that a message takes.
    """

    def __init__(self, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.outlet, self.delay = Outlet(IDLE), delay
        self.inlet = Inlet(self.open)
        self.queues: dict[int, asyncio.Queue[bytes | Exception]] = {}
        self.items: list[bytes] = []
        self.opened = self.left = 0
        self.draining = False
        self.failure: BaseException | None = None  # of the channel, in place of its next item
        self.calls: list[Call] = []

    async def open(self) -> AsyncGenerator[bytes]:
        self.opened += 1
        await asyncio.sleep(self.delay())
        if self.draining:
            yield GONE
            return
        async for item in self.outlet.stream():
            self.items.append(item)
            await asyncio.sleep(self.delay())
            if self.failure is not None:
                raise self.failure
            yield item

    async def answer(self, number: int) -> AsyncIterator[bytes]:
        queue = self.queues[number] = asyncio.Queue()
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item == b"lost":
                    return
                yield item
                if item == END:
                    return
        finally:
            self.left += 1

    def compute(self, number: int) -> AsyncGenerator[bytes]:
        async def call() -> bytes:
            await asyncio.sleep(self.delay())
            await self.outlet.carry(number, self.answer(number))
            await asyncio.sleep(self.delay())
            return END

        self.calls.append(Call(call()))
        return self.inlet.receive(number, self.calls[-1])

    def read(self, number: int) -> "asyncio.Task[list[bytes]]":
        async def work() -> list[bytes]:
            return [data async for data in self.compute(number)]

        return asyncio.get_running_loop().create_task(work())

    def say(self, *items: bytes | Exception) -> None:
        """What each request answers next, in one turn as in a step of an engine."""
        for queue in self.queues.values():
            for item in items:
                queue.put_nowait(item)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 30)

    asyncio.run(main())


async def turn() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def begin(count: int, **given: Any) -> tuple[Replica, list["asyncio.Task[list[bytes]]"]]:
    replica = Replica(**given)
    found = [replica.read(number) for number in range(count)]
    await turn()
    return replica, found


def test_frames_of_a_step_are_one_item() -> None:
    async def work() -> None:
        replica, found = await begin(50)
        for item in (b"one", b"two", END):
            replica.say(item)
            await turn()
        for task in found:
            assert await task == [b"one", b"two", END]
        frames = [DECODER.decode(item) for item in replica.items]
        assert len(frames) == 3 and replica.opened == 1
        assert all([number for number, _ in one] == [*range(50)] for one in frames)

    run(work)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_reordered(seed: int) -> None:
    """Calls, channels and messages take random times; channels end and others open."""
    draw = random.Random(seed)

    async def request(replica: Replica, number: int) -> int:
        await asyncio.sleep(draw.choice((0.0, draw.random() * 0.3)))
        reader = replica.read(number)
        while number not in replica.queues:
            await asyncio.sleep(0.001)
        sent = [b"%d %d" % (number, n) for n in range(draw.randrange(5))] + [END]
        for item in sent:
            await asyncio.sleep(draw.choice((0.0, 0.0, draw.random() * 0.02)))
            replica.queues[number].put_nowait(item)
        assert await reader == sent
        return len(sent)

    async def work() -> None:
        replica = Replica(lambda: draw.choice((0.0, draw.random() * 0.02)))
        replica.outlet.idle = 0.01
        counts = await asyncio.gather(*(request(replica, number) for number in range(40)))
        items = [item for item in replica.items if item != CLOSED]
        assert sum(len(DECODER.decode(item)) for item in items) == sum(counts)

    run(work)


def test_a_channel_that_is_idle_ends_and_another_opens() -> None:
    async def work() -> None:
        replica, (first,) = await begin(1)
        await asyncio.sleep(3 * IDLE)
        assert not replica.items, "a request runs"
        replica.say(b"one", END)
        assert await first == [b"one", END] and not replica.inlet.idle
        await asyncio.sleep(3 * IDLE)
        assert replica.items[-1] == CLOSED and replica.inlet.idle
        second = replica.read(1)
        await turn()
        replica.queues[1].put_nowait(END)
        assert await second == [END] and replica.opened == 2

    run(work)


def test_frames_wait_for_a_channel() -> None:
    """Also where the request's own call has long ended."""

    async def work() -> None:
        outlet = Outlet(IDLE)

        async def frames() -> AsyncIterator[bytes]:
            yield b"one"
            yield END

        await outlet.carry(7, frames())
        await asyncio.sleep(2 * IDLE)
        items = [item async for item in outlet.stream()]
        assert items[1:] == [CLOSED] and DECODER.decode(items[0]) == [(7, b"one"), (7, END)]

    run(work)


def test_an_engine_that_is_lost_ends_without_the_mark() -> None:
    async def work() -> None:
        replica, found = await begin(2)
        replica.say(b"one", b"lost")
        assert [await task for task in found] == [[b"one"], [b"one"]]
        assert not any(call.cancels for call in replica.calls)

    run(work)


def test_an_error_of_one_request_ends_that_one() -> None:
    async def work() -> None:
        replica, found = await begin(2)
        replica.queues[0].put_nowait(ValueError("bad"))
        with pytest.raises(ValueError, match="bad"):
            await found[0]
        replica.queues[1].put_nowait(END)
        assert await found[1] == [END] and not any(call.cancels for call in replica.calls)

    run(work)


def test_a_call_that_was_refused() -> None:
    async def work() -> None:
        replica = Replica()
        call = Call(asyncio.sleep(0, GONE))
        assert [data async for data in replica.inlet.receive(1, call)] == [GONE]
        assert not call.cancels

    run(work)


def test_a_call_that_ray_cancels_is_an_error() -> None:
    async def work() -> None:
        replica, (reader,) = await begin(1)
        replica.calls[0].task.cancel()
        with pytest.raises(EngineError, match="the call of a request was cancelled"):
            await reader

    run(work)


def test_a_channel_that_is_refused_refuses_its_requests() -> None:
    """A replica took them and then began to drain, so that it takes no channel."""

    async def work() -> None:
        replica = Replica()
        replica.draining = True
        found = [replica.read(number) for number in range(2)]
        assert [await task for task in found] == [[GONE], [GONE]]
        assert [call.cancels for call in replica.calls] == [1, 1]
        await turn()
        assert replica.left in (0, 2) and replica.opened == 1 and replica.inlet.idle

    run(work)


def test_a_refusal_never_follows_a_frame() -> None:
    """It would begin again elsewhere what a client has in part."""
    channels = [[*encode_items([(1, b"one")]), CLOSED], [GONE]]

    async def open() -> AsyncGenerator[bytes]:
        for item in channels.pop(0):
            yield item

    async def work() -> None:
        call = Call(asyncio.sleep(10, END))
        found = []
        with pytest.raises(EngineError, match="refused a request that it had begun"):
            async for data in Inlet(open).receive(1, call):
                found.append(data)
        assert found == [b"one"] and call.cancels == 1

    run(work)


@pytest.mark.parametrize(
    "failure", [ConnectionError("cut"), asyncio.CancelledError(), EngineError("cut")]
)
def test_a_channel_that_fails_ends_all_its_requests(failure: BaseException) -> None:
    async def work() -> None:
        replica, found = await begin(3)
        replica.failure = failure
        replica.say(b"one")
        for task in found:
            with pytest.raises((ConnectionError, EngineError), match=r"cut|cancelled"):
                await task
        assert [call.cancels for call in replica.calls] == [1, 1, 1]
        await turn()
        assert replica.left == 3 and replica.inlet.idle
        replica.failure = None
        again = replica.read(3)
        await turn()
        replica.queues[3].put_nowait(END)
        assert await again == [END]

    run(work)


def test_a_channel_without_an_end_is_an_error() -> None:
    async def work() -> None:
        replica, (reader,) = await begin(1)
        newer = replica.outlet.stream()
        waiting = asyncio.ensure_future(anext(newer))
        with pytest.raises(EngineError, match="the channel of a replica was cut"):
            await reader
        assert not waiting.done()

    run(work)


def test_the_newest_channel_has_all_that_follows() -> None:
    async def work() -> None:
        outlet = Outlet(IDLE)
        older, newer = outlet.stream(), outlet.stream()
        first = asyncio.ensure_future(anext(older))
        await turn()
        second = asyncio.ensure_future(anext(newer))
        await turn()

        async def frames() -> AsyncIterator[bytes]:
            yield END

        await outlet.carry(1, frames())
        assert DECODER.decode(await second) == [(1, END)]
        with pytest.raises(StopAsyncIteration):
            await first

    run(work)


def test_a_reader_that_leaves_cancels_its_request() -> None:
    async def work() -> None:
        replica, (other,) = await begin(1)
        async with aclosing(replica.compute(1)) as frames:
            reader = asyncio.ensure_future(anext(frames))
            await turn()
            replica.say(b"one")
            assert await reader == b"one"
        await turn()
        assert replica.left == 1 and [call.cancels for call in replica.calls] == [0, 1]
        replica.say(END)
        assert await other == [b"one", END]

    run(work)


def test_a_channel_that_closes_with_the_server() -> None:
    async def work() -> None:
        replica, (reader,) = await begin(1)
        replica.inlet.close()
        with pytest.raises(EngineError, match="was cancelled"):
            await reader
        assert replica.inlet.idle
        replica.inlet.close()

    run(work)


def test_large_frames_are_several_items(monkeypatch: pytest.MonkeyPatch) -> None:
    large = bytes(LARGEST - 1)
    frames = [(1, b"one"), (2, large), (3, bytes(2 * LARGEST)), (4, b"four"), (5, b"five")]
    items = [DECODER.decode(item) for item in encode_items(frames)]
    assert [[number for number, _ in item] for item in items] == [[1], [2], [3], [4, 5]]
    assert [one for item in items for one in item] == frames
    assert not [*encode_items([])]
    monkeypatch.setattr(ray_channel, "LARGEST", 8)
    assert len([*encode_items(frames)]) == 4
