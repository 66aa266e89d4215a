"""Whether constraints can be kept to, asked of processes that can be killed (`judge`).

Invariant: an answer comes within the time given, whatever is asked; a process that failed is
replaced; the event loop never waits.  The same question is asked once, as long as somebody waits
for it, and answers are remembered.
"""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from flyweight.errors import RequestError
from flyweight.server.http.errors import HttpError
from flyweight.server.judging.judge import LENGTH, Begin, pack
from flyweight.structured import NAME, StructuredOutputs

MOST = 2  # processes
REMEMBERED = 64  # answers; a question is up to 64 KB
MEMORY = 512 << 20  # bytes for one question
STARTING = 30.0  # seconds for a process to start on a busy machine
TRIES = 2  # of a question whose process was killed


class Killed(Exception):
    """Somebody else ended a process: the system, where memory is used up."""


@dataclass(slots=True)
class Question:
    """What is being found out, and how many wait for it."""

    task: asyncio.Task[str]
    waiting: int = 0


class Judges:
    """`special` are the tokens a grammar may name; `seconds` and `memory` are for one question."""

    def __init__(
        self, special: Callable[[], list[bytes]], seconds: float, memory: int = MEMORY
    ) -> None:
        self._special, self.seconds, self._memory = special, seconds, memory
        self.idle: list[Process] = []
        self._places = asyncio.Semaphore(MOST)
        self._known: OrderedDict[StructuredOutputs, str] = OrderedDict()
        self._asked: dict[StructuredOutputs, Question] = {}

    async def check(self, outputs: StructuredOutputs) -> None:
        """Raises `RequestError`."""
        answer = self._known.get(outputs)
        if answer is None:
            answer = await self._wait(outputs)
        else:
            self._known.move_to_end(outputs)
        if answer:
            raise RequestError(answer, NAME)

    async def _wait(self, outputs: StructuredOutputs) -> str:
        """The answer to a question, with all who ask the same; it is dropped when none is left."""
        question = self._asked.get(outputs)
        if question is None:
            task = asyncio.create_task(self._settle(outputs))
            question = self._asked[outputs] = Question(task)
        question.waiting += 1
        try:
            return await asyncio.shield(question.task)
        finally:
            question.waiting -= 1
            if not question.waiting and not question.task.done():
                del self._asked[outputs]  # whoever comes now asks anew
                question.task.cancel()

    async def close(self) -> None:
        """Ends the processes that wait for questions."""
        while self.idle:
            await _end(self.idle.pop())

    async def _settle(self, outputs: StructuredOutputs) -> str:
        try:
            async with self._places:
                answer = self._known[outputs] = await self._ask(outputs)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return answer
        finally:
            question = self._asked.get(outputs)
            if question is not None and question.task is asyncio.current_task():
                del self._asked[outputs]

    async def _ask(self, outputs: StructuredOutputs) -> str:
        """Raises `HttpError` where the system ends every process that is asked."""
        for _ in range(TRIES):
            with suppress(Killed):
                return await self._try(outputs)
        raise HttpError(503, "memory does not suffice for this constraint now", code="memory")

    async def _try(self, outputs: StructuredOutputs) -> str:
        """Raises `Killed`."""
        process = await self._free()
        name = f"{NAME}.{outputs.kind}"
        try:
            answer = await asyncio.wait_for(_answer(process, outputs), self.seconds)
        except TimeoutError:
            answer = f"{name} takes longer than {self.seconds:g} seconds to compile"
        except (asyncio.IncompleteReadError, OSError):
            if await process.wait() == -signal.SIGKILL:  # says nothing of the question
                raise Killed from None
            answer = f"{name} takes more than {self._memory >> 20} MiB to compile"
        except BaseException:
            await _end(process)
            raise
        else:
            self.idle.append(process)
            return answer
        await _end(process)
        return answer

    async def _free(self) -> Process:
        while self.idle:
            process = self.idle.pop()
            if process.returncode is None:
                return process
        return await self._start()

    async def _start(self) -> Process:
        """A process, once it has answered something.  Raises `Killed`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "flyweight.server.judging.judge"),
            stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(pack(Begin(self._special(), self._memory)))
        try:
            await asyncio.wait_for(_answer(process, StructuredOutputs(regex="a")), STARTING)
        except (asyncio.IncompleteReadError, OSError):
            await process.wait()
            raise Killed from None
        except BaseException:
            await _end(process)
            raise
        return process


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def worded(error: RequestError, place: str) -> RequestError:
    """A refusal that names the client's own field."""
    if not place or (error.field != NAME and not error.field.startswith(f"{NAME}.")):
        return error
    return RequestError(str(error).replace(f"{NAME}.json", place, 1), place.split(".")[0])


async def _answer(process: Process, outputs: StructuredOutputs) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(pack(outputs.given))
    head = await process.stdout.readexactly(LENGTH.size)
    body = await process.stdout.readexactly(LENGTH.unpack(head)[0])
    return msgspec.msgpack.decode(body, type=str)
