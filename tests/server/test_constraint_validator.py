"""The processes that try grammars: killed where they take too long, replaced, used once per
question.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.server.constraints.process import NICE
from flyweight.server.constraints.validator import MEMORY, ConstraintValidator, ExclusiveTurns
from flyweight.server.transport.errors import HttpError

SLOW = StructuredOutputs(
    json={
        "type": "object",
        "properties": {f"p{i}": {"type": "string", "format": "date-time"} for i in range(1200)},
    }
)


def judged(work: Callable[[ConstraintValidator], Awaitable[None]], memory: int = MEMORY) -> None:
    async def run() -> None:
        judges = ConstraintValidator(lambda: [b"<x>"], 60.0, memory)
        try:
            await work(judges)
        finally:
            await judges.close()

    asyncio.run(run())


def test_answers_are_the_compilers() -> None:
    async def work(judges: ConstraintValidator) -> None:
        await judges.check(StructuredOutputs(grammar="start: <x>"))
        for _ in range(2):
            with pytest.raises(RequestError, match="nowhere") as refusal:
                await judges.check(StructuredOutputs(grammar="start: nowhere"))
            assert refusal.value.path == "structured_outputs.grammar"

    judged(work)


def test_what_takes_too_long_is_killed_and_others_go_on() -> None:
    async def work(judges: ConstraintValidator) -> None:
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
    async def work(judges: ConstraintValidator) -> None:
        with pytest.raises(RequestError, match="takes more than 4 MiB to compile"):
            await judges.check(SLOW)
        await judges.check(StructuredOutputs(regex="b"))

    judged(work, memory=4 << 20)


def test_a_process_that_died_idle_is_replaced() -> None:
    async def work(judges: ConstraintValidator) -> None:
        await judges.check(StructuredOutputs(regex="a"))
        (process,) = judges.idle
        os.kill(process.pid, 9)
        await process.wait()
        await judges.check(StructuredOutputs(regex="b"))
        assert [other.pid for other in judges.idle] != [process.pid]

    judged(work)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, 0])
def test_a_process_whose_line_closed_before_its_end_is_seen_is_replaced(end: int) -> None:
    async def work() -> None:
        judges = ConstraintValidator(list, 60.0)
        await judges.check(StructuredOutputs(regex="a"))
        (process,) = judges.idle
        os.kill(process.pid, signal.SIGSTOP)
        assert process.stdin is not None
        process.stdin.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)
        os.kill(process.pid, end)  # 0: it goes on standing still
        assert process.returncode is None and judges.idle == [process]
        await judges.check(StructuredOutputs(regex="b"))
        assert [other.pid for other in judges.idle] != [process.pid]
        await judges.close()

    uvloop.run(work())  # the server's own: a write to what it has closed is a RuntimeError


def test_a_process_that_does_not_start_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.server.constraints.validator.STARTING", 0.001)

    async def work(judges: ConstraintValidator) -> None:
        with pytest.raises(HttpError, match="memory"):
            await asyncio.wait_for(judges.check(StructuredOutputs(regex="a")), 20)

    judged(work)


def test_a_question_without_waiting_requests_is_dropped() -> None:
    async def work(judges: ConstraintValidator) -> None:
        await judges.check(StructuredOutputs(regex="a"))  # a process is there now
        (process,) = judges.idle
        requested = [asyncio.create_task(judges.check(SLOW)) for _ in range(3)]
        while judges.idle:
            await asyncio.sleep(0)
        for task in requested:
            task.cancel()
        assert await process.wait() == -9
        assert judges._questions == {}
        await judges.check(StructuredOutputs(regex="b"))

    judged(work)


def test_equal_questions_are_checked_once_and_outlive_the_client() -> None:
    async def work(judges: ConstraintValidator) -> None:
        same = [asyncio.create_task(judges.check(StructuredOutputs(regex="a"))) for _ in range(9)]
        await asyncio.sleep(0)
        same[0].cancel()
        ended = await asyncio.gather(*same, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError) and ended[1:] == [None] * 8
        assert len(judges.idle) == 1

    judged(work)


def bomb(most: int) -> StructuredOutputs:
    """What takes seconds to try, from a source of a few KiB."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [f"^{c}{d}.*[0-9]{{1,{most}}}$" for c in letters for d in letters[:10]]
    pattern = {name: {"type": "string", "format": "date"} for name in names}
    return StructuredOutputs(json={"type": "object", "patternProperties": pattern})


def test_small_questions_do_not_wait_for_slow_ones() -> None:
    """However many there are: a small one is tried while none of the slow ones has ended, as the
    process that tries the first stands still.
    """

    async def work(judges: ConstraintValidator) -> None:
        await judges.check(StructuredOutputs(regex="a"))
        (process,) = judges.idle
        slow = [asyncio.create_task(judges.check(bomb(60 + i))) for i in range(6)]
        while judges.idle:
            await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGSTOP)
        for i in range(3):
            await judges.check(StructuredOutputs(choice=("q", str(i))))
        assert not any(task.done() for task in slow), "small questions waited for slow ones"
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert await process.wait() == -9

    judged(work)


def test_slow_questions_leave_capacity_for_others() -> None:
    async def run() -> None:
        judges = ConstraintValidator(list, 60.0, most=4)
        try:
            slow = [asyncio.create_task(judges.check(bomb(60 + i))) for i in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(HttpError, match="2 requests wait for long or slow") as refused:
                await judges.check(bomb(70))
            assert refused.value.status == 429 and refused.value.headers["retry-after"]
            await judges.check(StructuredOutputs(regex="a"))
            quick = [asyncio.create_task(judges.check(StructuredOutputs(regex=x))) for x in "bc"]
            await asyncio.sleep(0)
            with pytest.raises(HttpError, match="4 requests wait for schemas and grammars"):
                await judges.check(StructuredOutputs(regex="d"))
            await judges.check(StructuredOutputs(regex="a"))  # it is remembered
            for task in (*slow, *quick):
                task.cancel()
            await asyncio.gather(*slow, *quick, return_exceptions=True)
        finally:
            await judges.close()

    asyncio.run(run())


def test_slow_questions_are_answered_one_after_the_other() -> None:
    async def work(judges: ConstraintValidator) -> None:
        judges.seconds = 0.2
        slow = [judges.check(bomb(60 + i)) for i in range(3)]
        ended = await asyncio.gather(*slow, return_exceptions=True)
        assert all("takes longer than 0.2 seconds" in str(error) for error in ended), ended
        judges.seconds = 60.0
        await judges.check(StructuredOutputs(regex="b"))

    judged(work)


def test_a_judge_goes_behind_the_engine() -> None:
    async def work(judges: ConstraintValidator) -> None:
        await judges.check(StructuredOutputs(regex="a"))
        (process,) = judges.idle
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= NICE

    judged(work)


def test_turns_go_to_the_lightest_and_then_by_arrival() -> None:
    async def run() -> list[str]:
        turns, found = ExclusiveTurns(), []

        async def one(name: str, weight: int) -> None:
            await turns.enter(weight)
            found.append(name)
            turns.leave()

        assert turns.take() and not turns.take()
        weights = {"b": 5, "gone": 1, "a": 2, "c": 5}
        waiting = {name: asyncio.create_task(one(name, w)) for name, w in weights.items()}
        await asyncio.sleep(0)
        waiting["gone"].cancel()
        turns.leave()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        assert turns.take()
        return found

    assert asyncio.run(run()) == ["a", "b", "c"]
