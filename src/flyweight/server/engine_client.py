"""The engine process as the API server sees it: a pipe, and a stream per running request.

Invariant: every stream ends with its last event or one error; a stream that is left is aborted;
when the engine process ends, all streams end at once, and another process is started.  Runs on one
event loop; knows no HTTP.
"""

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec

from flyweight.errors import ConfigError, EngineError, FlyweightError
from flyweight.server import pipe
from flyweight.server.engine_process import EngineProcess, wait_or_kill
from flyweight.types import EventCollector

SOONEST, LATEST = 0.2, 10.0  # seconds before another process is started, doubled each time
SETTLED = 60.0  # seconds after which a process counts as having lived
TRIES = 5  # processes in a row that did not


class EngineDown(EngineError):
    """There is no engine process now."""


class EngineStream:
    """One running request; `news` is set when its collector was fed, or it ended in `error`.
    `on_start` is called when it is computed for the first time, `on_tokens` with the number of new
    tokens.
    """

    __slots__ = (
        "collector",
        "error",
        "news",
        "on_start",
        "on_tokens",
        "over",
        "running",
        "seen",
        "stopped",
    )

    def __init__(self, collector: EventCollector, news: asyncio.Event) -> None:
        self.collector, self.news = collector, news
        self.error: Exception | None = None
        self.on_start: Callable[[], None] = lambda: None
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        self.over = self.running = False
        self.seen: dict[int, float] = {}  # when the newest token of each choice came
        self.stopped: set[int] = set()  # choices that a stop string ended

    def end(self, error: Exception | None = None) -> None:
        self.error, self.over = error, True
        self.news.set()


class EngineClient:
    """Starts the engine process, and another one if it dies.  `begin` is the first message to it.
    `on_step` gets each step before its events are passed on, `on_event` gets the name and facts of
    what happens to the process, `on_loading` the progress of loading; `on_failure` is called if
    processes die as soon as they are started.  A process that is silent for twice `patience`
    seconds with work to do is killed.
    """

    def __init__(
        self,
        begin: pipe.EngineSetup,
        on_step: Callable[[pipe.StepReport], None],
        on_failure: Callable[[str], None],
        patience: float = 60.0,
    ) -> None:
        self.begin, self.on_step, self.on_failure = begin, on_step, on_failure
        self.patience = patience
        self.on_loading: Callable[[pipe.LoadingProgress], None] = lambda message: None
        self.facts: dict[str, Any] = {}
        self.streams: dict[str, EngineStream] = {}
        self.gauges: pipe.Gauges | None = None
        self.spoke = time.monotonic()  # when the engine last said something
        self.ready = False
        self.restarts = 0
        self.on_event: Callable[..., None] = lambda name, **facts: None
        self._process: subprocess.Popen[bytes] | None = None
        self._line: asyncio.WriteTransport | None = None
        self._built: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._questions = 0
        self._pinged = False
        self._watching: asyncio.TimerHandle | None = None
        self._closing = False
        self._again: asyncio.Task[None] | None = None

    def spawn(self) -> socket.socket:
        """Starts a process; there need not be an event loop yet."""
        return self.adopt(EngineProcess.spawn())

    def adopt(self, engine: EngineProcess) -> socket.socket:
        """Sends the first message to a process, and returns the pipe to it."""
        self._process = engine.process
        engine.line.sendall(pipe.encode_frame(self.begin))
        engine.line.setblocking(False)
        return engine.line

    async def connect(self, ours: socket.socket) -> None:
        """Waits until the process is ready.  Raises `ConfigError` if it cannot be."""
        loop = asyncio.get_running_loop()
        built = self._built = loop.create_future()
        try:
            transport, _ = await loop.create_connection(lambda: _Line(self), sock=ours)
            self._line = cast(asyncio.WriteTransport, transport)  # uvloop has classes of its own
            await built
        finally:
            if not built.cancel() and not built.cancelled():
                built.exception()  # marks the error as retrieved

    def submit(self, collector: EventCollector, news: asyncio.Event) -> EngineStream:
        """Starts a request.  Raises `EngineDown`."""
        if not self.ready or self._line is None:
            raise EngineDown("the engine is restarting; retry later")
        stream = EngineStream(collector, news)
        self._expect()
        self.streams[collector.request.id] = stream
        self._line.write(pipe.encode_frame(pipe.Submit.of(collector.request)))
        return stream

    def leave(self, stream: EngineStream) -> None:
        """Aborts a request that has no reader any more."""
        id = stream.collector.request.id
        if self.streams.pop(id, None) is not None and self._line is not None:
            self._line.write(pipe.encode_frame(pipe.Abort(id)))

    async def query(self, topic: pipe.Topic) -> dict[str, Any]:
        """The engine's answer to a question about itself.  Raises `EngineDown`."""
        if not self.ready or self._line is None:
            raise EngineDown("the engine is restarting; retry later")
        self._expect()
        self._questions += 1
        number = self._questions
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self._line.write(pipe.encode_frame(pipe.EngineQuestion(number, topic)))
        try:
            return await future
        finally:
            self._answers.pop(number, None)

    def measure_silence(self) -> float:
        """Seconds since the engine's last message while it has work; if there are streams, since
        its last progress on one.
        """
        return time.monotonic() - self.spoke if self._busy else 0.0

    def ping(self) -> None:
        """Makes the engine answer, so that its silence means something."""
        if not self._busy and self._line is not None:
            self._expect()
            self._pinged = True
            self._line.write(pipe.encode_frame(pipe.EngineQuestion(0, "ping")))

    @property
    def _busy(self) -> bool:
        return bool(self.streams or self._answers or self._pinged)

    def _expect(self) -> None:
        """Starts the clock of silence before a message is sent."""
        if not self._busy:
            self.spoke = time.monotonic()
        if self._watching is None:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(2 * self.patience, self._watch)

    def _watch(self) -> None:
        """Kills an engine that hangs; checks again while there is something to wait for."""
        self._watching = None
        left = 2 * self.patience - self.measure_silence()
        if left <= 0:
            self.kill()
        elif self._busy:
            self._watching = asyncio.get_running_loop().call_later(left, self._watch)

    async def close(self) -> None:
        """Ends the process by closing its pipe."""
        self._closing = True
        if self._again is not None:
            self._again.cancel()
        if self._line is not None:
            self._line.abort()
        if self._process is not None:
            await asyncio.to_thread(wait_or_kill, self._process)

    # --- messages of the engine ---

    def take(self, message: Any) -> None:
        if not self.streams or _shows_progress(message):
            self.spoke = time.monotonic()
        self._pinged = False
        if isinstance(message, pipe.StepReport):
            self._take_step(message)
        elif isinstance(message, pipe.RequestRefused):
            stream = self.streams.pop(message.id, None)
            if stream is not None:
                stream.end(pipe.unpack_error(message.error))
        elif isinstance(message, pipe.EngineAnswer):
            future = self._answers.get(message.number)
            if future is not None and not future.done():
                future.set_result(message.value)
        elif isinstance(message, pipe.Ready):
            self.facts, self.ready = message.facts, True
            self._settle(None)
        elif isinstance(message, pipe.LoadingProgress):
            self.on_loading(message)
        elif isinstance(message, pipe.Failed):
            self._settle(ConfigError(message.message))

    def handle_lost(self) -> None:
        """Ends all streams with an error, as the process has gone."""
        self.ready, self._line, self._pinged = False, None, False
        self.gauges = None  # another process computes nothing yet
        error = EngineDown("the engine ended while it computed this request; it is restarting")
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.end(error)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
        if self._settle(ConfigError("the engine ended before it was ready")):
            return
        if not self._closing:
            self.on_event("engine_ended", requests=len(streams))
            self._again = asyncio.get_running_loop().create_task(self._restart())

    def _settle(self, error: FlyweightError | None) -> bool:
        """Resolves the wait for the process to be ready; whether there was one."""
        if self._built is None or self._built.done():
            return False
        if error is None:
            self._built.set_result(None)
        else:
            self._built.set_exception(error)
        return True

    def kill(self) -> None:
        """Kills a process that sends invalid messages."""
        if self._process is not None:
            self._process.kill()

    def _take_step(self, message: pipe.StepReport) -> None:
        self.gauges = message.gauges
        self.on_step(message)
        for id in message.started:
            stream = self.streams.get(id)
            if stream is not None:
                stream.running = True
                stream.on_start()
        for news in message.news:
            stream = self.streams.get(news.id)
            if stream is not None:
                self._feed(stream, news)

    def _feed(self, stream: EngineStream, news: pipe.StepEvents) -> None:
        try:
            stopped = stream.collector.feed(news.to_event())
        except Exception as error:  # of this answer, as where its text cannot be made; of no other
            self.leave(stream)
            stream.end(error)
            return
        if stopped:
            stream.stopped.add(news.index)
            if self._line is not None:
                self._line.write(pipe.encode_frame(pipe.Abort(news.id, news.index, stopped=True)))
        if stream.collector.finished:
            del self.streams[news.id]
            stream.over = True
        stream.news.set()
        stream.on_tokens(len(news.tokens))

    async def _restart(self) -> None:
        wait, tries = SOONEST, 0
        while tries < TRIES:
            if self._process is not None:
                await asyncio.to_thread(wait_or_kill, self._process)
            await asyncio.sleep(wait)
            self.restarts += 1
            self.begin.fault = ""  # was meant for the first process
            born = time.monotonic()
            try:
                await self.connect(self.spawn())
                self.on_event("engine_ready", restarts=self.restarts)
                return
            except (FlyweightError, OSError) as error:
                tries = 0 if time.monotonic() - born > SETTLED else tries + 1
                wait = min(LATEST, 2 * wait)
                reason = str(error)
        self.on_failure(f"the engine could not be restarted: {reason}")


def _shows_progress(message: Any) -> bool:
    """Whether a message shows work on a request: an engine that only answers questions, or runs
    steps without tokens, may be stuck.
    """
    if isinstance(message, pipe.StepReport):
        return bool(message.gauges.tokens or message.news or message.started)
    return isinstance(message, pipe.RequestRefused)


class _Line(asyncio.Protocol):
    """The API server's side of the pipe."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._frames = pipe.PipeFrames(pipe.ToFront)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.push(data)
        except (msgspec.DecodeError, ValueError):
            self._client.kill()
            return
        for message in messages:
            self._client.take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.handle_lost()
