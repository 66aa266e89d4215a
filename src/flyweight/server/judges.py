"""Whether constraints can be kept to, asked of processes that can be killed (`judge`).

Invariant: an answer comes within the time given, whatever is asked; a process that failed is
replaced; the event loop never waits.  The same question is asked once, and answers are remembered.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from flyweight.errors import RequestError
from flyweight.server.judge import LENGTH, Begin, pack
from flyweight.structured import NAME, StructuredOutputs

MOST = 2  # processes
REMEMBERED = 64  # answers; a question is up to 64 KB
MEMORY = 512 << 20  # bytes for one question
STARTING = 30.0  # seconds for a process to start on a busy machine


class Judges:
    """`special` are the tokens a grammar may name, `seconds` the time for one question."""

    def __init__(self, special: Callable[[], list[bytes]], seconds: float) -> None:
        self._special, self._seconds = special, seconds
        self._idle: list[Process] = []
        self._places = asyncio.Semaphore(MOST)
        self._known: OrderedDict[StructuredOutputs, str] = OrderedDict()
        self._asked: dict[StructuredOutputs, asyncio.Task[str]] = {}

    async def check(self, outputs: StructuredOutputs) -> None:
        """Raises `RequestError`."""
        answer = self._known.get(outputs)
        if answer is None:
            task = self._asked.get(outputs)
            if task is None:
                task = self._asked[outputs] = asyncio.create_task(self._settle(outputs))
            answer = await asyncio.shield(task)  # one who leaves does not take it from the others
        else:
            self._known.move_to_end(outputs)
        if answer:
            raise RequestError(answer, NAME)

    def close(self) -> None:
        """Ends the processes that wait for questions."""
        for process in self._idle:
            process.kill()
        self._idle.clear()

    async def _settle(self, outputs: StructuredOutputs) -> str:
        try:
            async with self._places:
                answer = self._known[outputs] = await self._ask(outputs)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return answer
        finally:
            del self._asked[outputs]

    async def _ask(self, outputs: StructuredOutputs) -> str:
        process = self._idle.pop() if self._idle else await self._start()
        name = f"{NAME}.{outputs.kind}"
        try:
            answer = await asyncio.wait_for(_answer(process, outputs), self._seconds)
        except TimeoutError:
            answer = f"{name} takes longer than {self._seconds:g} seconds to compile"
        except (asyncio.IncompleteReadError, OSError):
            answer = f"{name} takes more than {MEMORY >> 20} MiB to compile"
        except BaseException:
            process.kill()
            raise
        else:
            self._idle.append(process)
            return answer
        process.kill()
        await process.wait()
        return answer

    async def _start(self) -> Process:
        """A process, once it has answered something."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "flyweight.server.judge"),
            stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(pack(Begin(self._special(), MEMORY)))
        try:
            await asyncio.wait_for(_answer(process, StructuredOutputs(regex="a")), STARTING)
        except BaseException:
            process.kill()
            raise
        return process


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
