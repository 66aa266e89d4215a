"""The processes that try grammars: killed where they take too long, replaced, asked once."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from flyweight.errors import RequestError
from flyweight.server.judging.judges import MEMORY, Judges
from flyweight.structured import StructuredOutputs

SLOW = StructuredOutputs(
    json={
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "format": "date-time"} for i in range(1200)},
    }
)


def judged(work: Callable[[Judges], Awaitable[None]], memory: int = MEMORY) -> None:
    async def run() -> None:
        judges = Judges(lambda: [b"<x>"], 60.0, memory)
        try:
            await work(judges)
        finally:
            await judges.close()

    asyncio.run(run())


def test_answers_are_the_compilers() -> None:
    async def work(judges: Judges) -> None:
        await judges.check(StructuredOutputs(grammar="start: <x>"))
        for _ in range(2):
            with pytest.raises(RequestError, match="nowhere") as refusal:
                await judges.check(StructuredOutputs(grammar="start: nowhere"))
            assert refusal.value.field == "structured_outputs"

    judged(work)


def test_what_takes_too_long_is_killed_and_others_go_on() -> None:
    async def work(judges: Judges) -> None:
        judges.seconds = 60.0
        await judges.check(StructuredOutputs(regex="a"))  # a process is there now
        judges.seconds = 0.05
        with pytest.raises(RequestError, match=r"takes longer than 0\.05 seconds"):
            await judges.check(SLOW)
        judges.seconds = 60.0
        await judges.check(StructuredOutputs(regex="b"))
        with pytest.raises(RequestError, match="takes longer"):  # it is remembered
            await judges.check(SLOW)

    judged(work)


def test_memory_has_a_bound() -> None:
    async def work(judges: Judges) -> None:
        with pytest.raises(RequestError, match="takes more than 4 MiB to compile"):
            await judges.check(SLOW)
        await judges.check(StructuredOutputs(regex="b"))

    judged(work, memory=4 << 20)


def test_a_process_that_died_idle_is_replaced() -> None:
    async def work(judges: Judges) -> None:
        await judges.check(StructuredOutputs(regex="a"))
        (process,) = judges.idle
        os.kill(process.pid, 9)
        await process.wait()
        await judges.check(StructuredOutputs(regex="b"))
        assert [other.pid for other in judges.idle] != [process.pid]

    judged(work)


def test_a_question_nobody_waits_for_is_dropped() -> None:
    async def work(judges: Judges) -> None:
        await judges.check(StructuredOutputs(regex="a"))  # a process is there now
        (process,) = judges.idle
        asked = [asyncio.create_task(judges.check(SLOW)) for _ in range(3)]
        while judges.idle:
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        assert await process.wait() == -9
        assert judges._asked == {}
        await judges.check(StructuredOutputs(regex="b"))

    judged(work)


def test_one_question_is_asked_once_and_outlives_who_asked() -> None:
    async def work(judges: Judges) -> None:
        same = [asyncio.create_task(judges.check(StructuredOutputs(regex="a"))) for _ in range(9)]
        await asyncio.sleep(0)
        same[0].cancel()
        ended = await asyncio.gather(*same, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError) and ended[1:] == [None] * 8
        assert len(judges.idle) == 1

    judged(work)
