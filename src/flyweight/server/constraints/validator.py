"""Checks that schemas, regexes and grammars compile, and whether finished texts satisfy schemas, in
processes that can be killed (`process`).

Invariant: an answer comes within the given time; a process that failed is replaced; the event loop
never waits.  Requests with the same constraint share one check, and results are remembered.  Slow
checks and long sources delay quick ones by `QUICK` at most, and take half of the places at most.
"""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec

from flyweight.errors import RequestError
from flyweight.params.structured import NAME, StructuredOutputs
from flyweight.server.constraints.process import LENGTH, ValidatorSetup, pack
from flyweight.server.transport.errors import HttpError

QUICK = 0.5  # seconds for a question in the first place; one that takes longer goes to the second
LIGHT = 4096  # characters of a source that is expected to be quick
WAITING = 128  # requests that may wait, half of them for questions that are not quick
RETRY = 5  # Retry-After, in seconds
REMEMBERED = 64  # answers; a question is up to 64 KB
MEMORY = 512 << 20  # bytes for one question
STARTING = 30.0  # seconds for a process to start on a busy machine
TRIES = 2  # of a question whose process was killed
# Of a `RequestError`; empty: a constraint that can be kept to.  Of a text, whether it is `valid`.
ErrorData = dict[str, Any]


class ExclusiveTurns:
    """A lock: of the tasks that wait, the lightest gets it next, then the earliest."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = count()

    def take(self) -> bool:
        """Takes the lock if it is free; whether it was."""
        if self._taken:
            return False
        self._taken = True
        return True

    async def enter(self, weight: int) -> None:
        """Waits for the lock."""
        if self.take():
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (weight, next(self._number), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came after the wait was cancelled
                self.leave()
            raise

    def leave(self) -> None:
        """Passes the lock on."""
        while self._waiting:
            turn = heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class ValidatorKilled(Exception):
    """Another process killed this one: the system, if memory is used up."""


@dataclass(slots=True)
class ValidationQuestion:
    """A running check, and how many requests wait for it; `heavy`: it may take long."""

    task: asyncio.Task[ErrorData]
    heavy: bool
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class FinishedText:
    """A text that may satisfy a schema."""

    outputs: StructuredOutputs
    text: str

    @property
    def kind(self) -> str:
        return self.outputs.kind

    @property
    def size(self) -> int:
        return self.outputs.size + len(self.text)


Question = StructuredOutputs | FinishedText


class ValidationTrial:
    """A question that was sent to a process."""

    def __init__(self, process: Process, question: Question) -> None:
        self.process = process
        self.task = asyncio.ensure_future(_answer(process, question))

    async def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so long at most."""
        try:
            return bool((await asyncio.wait({self.task}, timeout=seconds))[0])
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        self.task.cancel()
        await _end(self.process)


class ConstraintValidator:
    """`special` are the tokens that a grammar may name; `seconds` and `memory` limit one question;
    at most `most` requests wait.
    """

    def __init__(
        self,
        special: Callable[[], list[bytes]],
        seconds: float,
        memory: int = MEMORY,
        most: int = WAITING,
    ) -> None:
        self._special, self.seconds, self._memory, self._most = special, seconds, memory, most
        self.idle: list[Process] = []
        self._quick_turn, self._slow_turn = ExclusiveTurns(), ExclusiveTurns()
        self._known: OrderedDict[StructuredOutputs, ErrorData] = OrderedDict()
        self._questions: dict[StructuredOutputs, ValidationQuestion] = {}

    async def check(self, outputs: StructuredOutputs) -> None:
        """Raises `RequestError`, and `HttpError` where too many wait."""
        answer = self._known.get(outputs)
        if answer is None:
            answer = await self._wait(outputs)
        else:
            self._known.move_to_end(outputs)
        if answer:
            raise RequestError(**answer)

    async def validate(self, outputs: StructuredOutputs, text: str) -> bool | None:
        """Whether a finished text satisfies a schema; None if the check takes too long."""
        try:
            answer = await self._ask(FinishedText(outputs, text))
        except HttpError:
            return None
        return answer.get("valid")

    async def _wait(self, outputs: StructuredOutputs) -> ErrorData:
        """The answer to a question, shared by equal questions; the check is cancelled when
        none is left.
        """
        question = self._questions.get(outputs)
        heavy = outputs.size > LIGHT if question is None else question.heavy
        self._admit(heavy=heavy)
        if question is None:
            task = asyncio.create_task(self._settle(outputs))
            question = self._questions[outputs] = ValidationQuestion(task, heavy)
        question.waiting += 1
        try:
            return await asyncio.shield(question.task)
        finally:
            question.waiting -= 1
            if not question.waiting and not question.task.done():
                del self._questions[outputs]  # later requests start a new check
                question.task.cancel()

    def _admit(self, *, heavy: bool, more: int = 1) -> None:
        """Raises `HttpError` where there is no room for so many to wait."""
        found = [one.waiting for one in self._questions.values() if one.heavy or not heavy]
        most = max(1, self._most // 2) if heavy else self._most
        if sum(found) + more > most:
            which = "long or slow schemas and grammars" if heavy else "schemas and grammars"
            raise HttpError(
                429,
                f"queue full: {sum(found)} requests wait for {which} to be checked (max {most})",
                code="queue_full",
                headers={"retry-after": str(RETRY)},
            )

    async def close(self) -> None:
        """Ends the idle processes."""
        while self.idle:
            await _end(self.idle.pop())

    async def _settle(self, outputs: StructuredOutputs) -> ErrorData:
        try:
            answer = self._known[outputs] = await self._ask(outputs)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            return answer
        finally:
            question = self._questions.get(outputs)
            if question is not None and question.task is asyncio.current_task():
                del self._questions[outputs]

    async def _ask(self, question: Question) -> ErrorData:
        """Raises `HttpError` where the system ends every validating process."""
        for _ in range(TRIES):
            with suppress(ValidatorKilled):
                return await self._try(question)
        raise HttpError(
            503, "there is not enough memory for this constraint now", code="insufficient_memory"
        )

    async def _try(self, question: Question) -> ErrorData:
        """Raises `ValidatorKilled`."""
        weight = question.size
        if weight > LIGHT and self._slow_turn.take():
            return await self._finish_slow(question)
        await self._quick_turn.enter(weight)
        try:
            trial = ValidationTrial(await self._get_process(), question)
            if await trial.wait(min(QUICK, self.seconds)) or self.seconds <= QUICK:
                return await self._take_answer(trial, question, 0.0)
            moved = self._slow_turn.take()  # it goes on; else it begins again when its turn comes
            if not moved:
                await trial.end()
        finally:
            self._quick_turn.leave()
        if isinstance(question, StructuredOutputs) and question in self._questions:
            self._questions[question].heavy = True
        if moved:
            return await self._finish_slow(question, trial)
        self._admit(heavy=True, more=0)
        await self._slow_turn.enter(weight)
        return await self._finish_slow(question)

    async def _finish_slow(
        self, question: Question, trial: ValidationTrial | None = None
    ) -> ErrorData:
        """The answer of a question that has the slow turn, which it then leaves.  Raises
        `ValidatorKilled`.
        """
        try:
            begun = trial or ValidationTrial(await self._get_process(), question)
            return await self._take_answer(begun, question, self.seconds)
        finally:
            self._slow_turn.leave()

    async def _take_answer(
        self, trial: ValidationTrial, question: Question, seconds: float
    ) -> ErrorData:
        """The answer, if it comes within `seconds`.  Raises `ValidatorKilled`."""
        try:
            answer = await asyncio.wait_for(trial.task, seconds)
        except TimeoutError:
            problem = f"takes longer than {self.seconds:g} seconds to compile"
        except ValidatorKilled:
            await trial.end()
            raise
        except (asyncio.IncompleteReadError, OSError):
            if await trial.process.wait() == -signal.SIGKILL:  # says nothing of the question
                raise ValidatorKilled from None
            problem = f"takes more than {self._memory >> 20} MiB to compile"
        except BaseException:
            await trial.end()
            raise
        else:
            self.idle.append(trial.process)
            return answer
        await _end(trial.process)
        name = f"{NAME}.{question.kind}"
        return RequestError(problem, name, code="constraint_limit").data

    async def _get_process(self) -> Process:
        while self.idle:
            process = self.idle.pop()
            if process.returncode is None:
                return process
        return await self._start()

    async def _start(self) -> Process:
        """A new process that has answered a first question.  Raises `ValidatorKilled`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "flyweight.server.constraints.process"),
            stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _send(process, ValidatorSetup(self._special(), self._memory))
            await asyncio.wait_for(_answer(process, StructuredOutputs(regex="a")), STARTING)
        except (asyncio.IncompleteReadError, OSError, ValidatorKilled):
            await _end(process)
            raise ValidatorKilled from None
        except BaseException:
            await _end(process)
            raise
        return process


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def map_constraint_names(place: str) -> dict[str, str]:
    """The names of fields in errors, for a constraint that is at `place` in the body."""
    ours = (f"{NAME}.json", f"{NAME}.grammar", NAME)
    return dict.fromkeys(ours, place) if place else {}


def _send(process: Process, message: object) -> None:
    """Raises `ValidatorKilled` where it has ended."""
    assert process.stdin is not None
    if process.stdin.is_closing():  # uvloop raises RuntimeError on a write to what it has closed
        raise ValidatorKilled
    process.stdin.write(pack(message))


async def _answer(process: Process, question: Question) -> ErrorData:
    """A process's answer.  Raises `ValidatorKilled`; or `OSError` or `IncompleteReadError` if it
    ended.
    """
    assert process.stdout is not None
    if isinstance(question, FinishedText):
        _send(process, {"outputs": question.outputs.given, "text": question.text})
    else:
        _send(process, {"outputs": question.given})
    head = await process.stdout.readexactly(LENGTH.size)
    body = await process.stdout.readexactly(LENGTH.unpack(head)[0])
    return msgspec.msgpack.decode(body, type=ErrorData)
