"""One engine process behind frames: what runs in the process of a replica.

Invariant: each request has a stream of its own, which ends with `END` unless the engine was lost;
every step is reported in one stream, so that all are counted once.  A stream that is left aborts
its request.  Knows no Ray and no other replica.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flyweight import __version__
from flyweight.errors import ConfigError, FlyweightError
from flyweight.parallel.cluster import END
from flyweight.server import pipe
from flyweight.server.engine_host import EngineHost
from flyweight.server.engine_process import EngineProcess
from flyweight.server.replicas.builds import describe_build
from flyweight.server.replicas.clocks import ClockedSubmit, shift_events
from flyweight.server.replicas.reports import ReplicaReport, decode_setup


@dataclass(slots=True)
class OpenStream:
    """A request under way: `left` choices have not ended; None in `queue`: the engine was lost."""

    id: str
    left: set[int]
    shift: float  # seconds by which the API server's clock is ahead
    queue: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)

    def end(self, index: int | None) -> None:
        """A choice has ended, or all of them."""
        if not self.left:
            return
        self.left = set() if index is None else self.left - {index}
        if not self.left:
            self.queue.put_nowait(END)


class EngineReplica:
    """The engine that an encoded `ReplicaSetup` describes.  It is killed where it answers nothing
    for `patience` seconds.
    """

    wanted = True  # of a client of `EngineHost`, which this is
    sent, lost = True, 0

    def __init__(self, setup: bytes, patience: float = 120.0) -> None:
        """A setup that cannot be decoded is reported, and raised by `start`."""
        found = decode_setup(setup)
        self.setup = found.engine
        self.patience = patience
        self.host = EngineHost(lambda reason: None)  # which never starts another process
        self.number = self.host.add(self)
        self.state = ReplicaReport(__version__, found.generation, failed=found.problem)
        self._streams: dict[str, OpenStream] = {}
        self._built: asyncio.Future[dict[str, Any]] | None = None
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._questions = 0
        self._ended = False
        self._asked = 0.0  # when a ping was sent that was not answered yet; 0: there is none

    # --- what a cluster calls ---

    async def start(self) -> None:
        """Returns once the engine is loaded.  Raises `FlyweightError`."""
        if self.state.failed:
            raise ConfigError(self.state.failed)
        self._built = asyncio.get_running_loop().create_future()
        await self.host.connect(self.host.adopt(EngineProcess.spawn(), self))
        facts = await self._built
        try:
            build = await asyncio.to_thread(describe_build, self.setup.settings)
        except FlyweightError as error:
            self.state.failed = self.state.failed or str(error)
            raise
        self.state.facts = {**facts, **build}

    async def compute(self, frame: bytes) -> AsyncIterator[bytes]:
        """The frames that answer a request; several may be one item."""
        clocked = msgspec.msgpack.decode(frame, type=ClockedSubmit)
        shift = clocked.measure_shift()
        submit = clocked.on_clock(shift)
        if self._ended:
            return
        stream = OpenStream(submit.id, set(range(count_choices(submit))), shift)
        self._streams[submit.id] = stream
        self.host.send(self.number, submit)
        try:
            while True:
                items = [await stream.queue.get()]
                while not stream.queue.empty():
                    items.append(stream.queue.get_nowait())
                if found := b"".join(one for one in items if one):
                    yield found
                if END in items:
                    yield END
                if END in items or None in items:
                    return
        finally:
            self._streams.pop(submit.id, None)
            if stream.left:
                self.host.send(self.number, pipe.Abort(submit.id))

    async def tell(self, frame: bytes) -> bytes:
        """Takes a message that is no request; the frame that answers a question."""
        message = decode(frame, pipe.ToEngine)
        if isinstance(message, pipe.Abort):
            self._abort(message)
            return b""
        if not isinstance(message, pipe.EngineQuestion) or self._ended:
            return b""
        return await self._ask(message.topic)

    def report(self) -> bytes:
        """Its state; also checks that the engine answers."""
        now = time.monotonic()
        if self._asked and now - self._asked > self.patience:
            self.host.kill()
        elif not self._asked and self.state.facts is not None and not self._ended:
            self._asked = now
            self.host.send(self.number, pipe.EngineQuestion(0, "ping"))
        return msgspec.msgpack.encode(self.state)

    @property
    def healthy(self) -> bool:
        return not self._ended

    async def close(self) -> None:
        await self.host.close()

    # --- what its requests do ---

    def _abort(self, message: pipe.Abort) -> None:
        stream = self._streams.get(message.id)
        self.host.send(self.number, message)
        if stream is not None:
            stream.end(message.index)

    async def _ask(self, topic: pipe.Topic) -> bytes:
        self._questions += 1
        number = self._questions
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self.host.send(self.number, pipe.EngineQuestion(number, topic))
        try:
            return await future
        finally:
            self._answers.pop(number, None)

    # --- what the engine says: `EngineListener` ---

    def begin_loading(self) -> pipe.EngineSetup:
        return self.setup

    def load(self) -> None:
        raise AssertionError("it is loaded once")

    async def wait_until_ready(self) -> None:
        raise AssertionError("it is loaded once")

    def take(self, message: Any) -> None:
        if isinstance(message, pipe.StepReport):
            self._take_step(message)
        elif isinstance(message, pipe.RequestRefused):
            stream = self._streams.get(message.id)
            if stream is not None:
                stream.queue.put_nowait(pipe.encode_frame(message))
                stream.end(None)
        elif isinstance(message, pipe.EngineAnswer):
            self._take_answer(message)
        elif isinstance(message, pipe.LoadingProgress):
            if message.what != "progress":
                self.state.loading = [*self.state.loading, message]
        elif isinstance(message, pipe.Ready):
            if self._built is not None and not self._built.done():
                self._built.set_result(message.facts)
        elif isinstance(message, pipe.Failed):
            self.state.failed = message.message
            self._fail(message.message)

    def handle_lost(self) -> None:
        """The process has gone: ends all streams without `END`."""
        self._ended = True
        for stream in self._streams.values():
            stream.queue.put_nowait(None)
        for future in self._answers.values():
            if not future.done():
                future.set_result(b"")
        self.state.failed = self.state.failed or "the engine process ended"
        self._fail("the engine process ended before it was ready")

    def _fail(self, problem: str) -> None:
        if self._built is not None and not self._built.done():
            self._built.set_exception(ConfigError(problem))

    def _take_answer(self, message: pipe.EngineAnswer) -> None:
        if not message.number:
            self._asked = 0.0
        future = self._answers.get(message.number)
        if future is not None and not future.done():
            future.set_result(pipe.encode_frame(message))

    def _take_step(self, message: pipe.StepReport) -> None:
        """Divides a step's events among their requests."""
        idle = msgspec.structs.replace(message.gauges, tokens=0, prompt_tokens=0, seconds=0.0)
        self.state.gauges = idle
        parts: dict[str, pipe.StepReport] = {}
        for id in message.started:
            self._add_part(parts, id, message).started.append(id)
        for news in message.news:
            self._add_part(parts, news.id, message).news.append(news)
        known = [self._streams[id] for id in parts if id in self._streams]
        if not known:  # a step without events is counted in any stream
            known = list(self._streams.values())[:1]
        for first, stream in enumerate(known):
            part = parts.get(stream.id) or pipe.StepReport([], [], message.gauges)
            part.gauges = idle if first else message.gauges
            part.stays = [] if first else message.stays
            self._send(stream, part, message.at)

    def _add_part(
        self, parts: dict[str, pipe.StepReport], id: str, message: pipe.StepReport
    ) -> pipe.StepReport:
        return parts.setdefault(id, pipe.StepReport([], [], message.gauges))

    def _send(self, stream: OpenStream, part: pipe.StepReport, at: float) -> None:
        part.at = at + stream.shift
        part.news = shift_events(part.news, stream.shift)
        stream.queue.put_nowait(pipe.encode_frame(part))
        for news in part.news:
            if news.finish is not None:
                stream.end(news.index)


def count_choices(submit: pipe.Submit) -> int:
    """Choices that end on their own: those of `n`, or all answers of a search."""
    width = submit.beam["beam_width"] if submit.beam else 1
    return max(int(submit.params.get("n", 1)), int(width))


def decode(frame: bytes, kind: Any) -> Any:
    """The one message of a frame."""
    ((_, message),) = pipe.PipeFrames(kind).push(frame)
    return message
