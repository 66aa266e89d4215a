"""One engine as the API server sees it: loading, and a stream per running request.

Invariant: every stream ends with its last event or one error; a stream that is left is aborted;
when the engine process ends, all streams end at once.  Runs on one event loop; knows no HTTP, and
no process (`Host`).
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from flyweight.errors import ConfigError, EngineError, MemoryShortage
from flyweight.server import pipe
from flyweight.server.engine_host import Host
from flyweight.types import Event, EventCollector, Timings


class EngineDown(EngineError):
    """There is no engine process now."""


class EngineStream:
    """One running request; `news` is set when its collector was fed, or it ended in `error`.
    `on_start` is called when it is computed for the first time, `on_tokens` with the number of new
    tokens.  A request with a `key` may be joined by equal ones: `followers` get its events, those
    of its `past` first.
    """

    __slots__ = (
        "collector",
        "error",
        "followers",
        "key",
        "leader",
        "left",
        "news",
        "on_start",
        "on_tokens",
        "over",
        "past",
        "running",
        "seen",
        "stopped",
    )

    def __init__(
        self, collector: EventCollector, news: asyncio.Event, key: bytes | None = None
    ) -> None:
        self.collector, self.news, self.key = collector, news, key
        self.error: Exception | None = None
        self.on_start: Callable[[], None] = lambda: None
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        self.over = self.running = self.left = False
        self.seen: dict[int, float] = {}  # when the newest token of each choice came
        self.stopped: set[int] = set()  # choices that a stop string ended
        self.leader: EngineStream | None = None
        self.followers: list[EngineStream] = []
        self.past: list[pipe.StepEvents] = []

    def start(self) -> None:
        """It is computed for the first time."""
        for one in (self, *self.followers):
            one.running = True
            one.on_start()

    def end(self, error: Exception | None = None) -> None:
        for one in (self, *self.followers):
            one.error, one.over = error, True
            one.news.set()


class EngineClient:
    """The engine that `begin` describes, on a process of `host`.  `on_step` gets each step before
    its events are passed on, `on_loading` the progress of loading.  A process whose engine is
    silent for twice `patience` seconds with work to do is killed.  `lost_since` is when the engine
    was ready last, once its process has ended.
    """

    def __init__(
        self,
        host: Host,
        begin: pipe.EngineSetup,
        on_step: Callable[[pipe.StepReport], None] = lambda message: None,
        patience: float = 60.0,
    ) -> None:
        self.host, self.begin, self.on_step, self.patience = host, begin, on_step, patience
        self.number = host.add(self)
        self.on_loading: Callable[[pipe.LoadingProgress], None] = lambda message: None
        self.facts: dict[str, Any] = {}
        self.streams: dict[str, EngineStream] = {}  # without those that follow another
        self.joined = 0  # requests that followed another
        self._leaders: dict[bytes, EngineStream] = {}
        self.gauges: pipe.Gauges | None = None
        self.spoke = time.monotonic()  # when the engine last said something
        self.ready = self.wanted = self.sent = False
        self.lost = 0
        self.lost_since = 0.0
        self._failure: ConfigError | None = None
        self._built: asyncio.Future[None] | None = None
        self._dropped: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._questions = 0
        self._pinged = False
        self._watching: asyncio.TimerHandle | None = None

    # --- loading ---

    def begin_loading(self) -> pipe.EngineSetup:
        """From now on the engine is wanted; the message that describes it."""
        self.wanted, self.sent, self._failure = True, True, None
        return self.begin

    def load(self) -> None:
        """Lets the process load the engine.  Raises `EngineDown`."""
        if not self.host.connected:
            raise EngineDown("the engine is restarting; retry later")
        self.host.send(self.number, self.begin_loading())

    async def wait_until_ready(self) -> None:
        """Raises `ConfigError` if the engine cannot be loaded, or is unloaded meanwhile."""
        if self._failure is not None:
            raise self._failure
        if self.ready:
            return
        built = self._built = asyncio.get_running_loop().create_future()
        try:
            await built
        finally:
            if not built.cancel() and not built.cancelled():
                built.exception()  # marks the error as retrieved

    async def unload(self) -> None:
        """Drops the engine; its streams end with an error."""
        self.ready = self.wanted = self.sent = False
        self._end_streams(EngineDown("the model was unloaded"))
        dropped = self._dropped = asyncio.get_running_loop().create_future()
        self.host.send(self.number, pipe.Unload())
        if self.host.connected:
            await dropped

    def _end_unload(self) -> None:
        dropped, self._dropped = self._dropped, None
        if dropped is not None and not dropped.done():
            dropped.set_result(None)

    # --- requests ---

    def submit(
        self, collector: EventCollector, news: asyncio.Event, key: bytes | None = None
    ) -> EngineStream:
        """Starts a request, or joins the running one with the same key.  Raises `EngineDown`."""
        if not self.ready:
            raise EngineDown("the engine is restarting; retry later")
        stream = EngineStream(collector, news, key)
        leader = self._leaders.get(key) if key is not None else None
        if leader is not None:
            self._join(stream, leader)
            return stream
        if key is not None:
            self._leaders[key] = stream
        self._expect()
        self.streams[collector.request.id] = stream
        self.host.send(self.number, pipe.Submit.of(collector.request))
        return stream

    def send_together(self) -> AbstractContextManager[None]:
        """What is submitted meanwhile arrives at the engine as one."""
        return self.host.send_together()

    def computes(self, key: bytes | None) -> bool:
        """Whether a request with this key would join one that runs."""
        return key is not None and key in self._leaders

    def leave(self, stream: EngineStream) -> None:
        """Aborts a request that has no reader any more; one that others follow is computed on."""
        stream.left = True
        leader = stream.leader or stream
        if stream.leader is not None and stream in leader.followers:
            leader.followers.remove(stream)
        id = leader.collector.request.id
        if leader.left and not leader.followers and id in self.streams:
            self._forget(leader)
            self.host.send(self.number, pipe.Abort(id))

    def _join(self, stream: EngineStream, leader: EngineStream) -> None:
        """Lets a request have the events of an equal one."""
        self.joined += 1
        stream.leader, stream.running = leader, leader.running
        leader.followers.append(stream)
        for news in leader.past:
            self._feed_one(stream, news)

    def _forget(self, stream: EngineStream) -> None:
        del self.streams[stream.collector.request.id]
        if stream.key is not None:
            del self._leaders[stream.key]

    async def query(self, topic: pipe.Topic) -> dict[str, Any]:
        """The engine's answer to a question about itself.  Raises `EngineDown`."""
        if not self.ready:
            raise EngineDown("the engine is restarting; retry later")
        self._expect()
        self._questions += 1
        number = self._questions
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        self.host.send(self.number, pipe.EngineQuestion(number, topic))
        try:
            return await future
        finally:
            self._answers.pop(number, None)

    def measure_silence(self) -> float:
        """Seconds since the engine's last message while it has work; if there are streams, since
        the last progress on one of any engine of its process, which may compute another's first.
        """
        return time.monotonic() - max(self.spoke, self.host.progressed) if self._busy else 0.0

    def ping(self) -> None:
        """Makes the engine answer, so that its silence means something."""
        if not self._busy and self.ready:
            self._expect()
            self._pinged = True
            self.host.send(self.number, pipe.EngineQuestion(0, "ping"))

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
            self.host.kill()
        elif self._busy:
            self._watching = asyncio.get_running_loop().call_later(left, self._watch)

    # --- messages of the engine ---

    def take(self, message: Any) -> None:
        progress = _shows_progress(message)
        if progress or not self.streams:
            self.spoke = time.monotonic()
        if progress:
            self.host.progressed = self.spoke
        self._pinged = False
        if isinstance(message, pipe.StepReport):
            self._take_step(message)
        elif isinstance(message, pipe.RequestRefused):
            stream = self.streams.get(message.id)
            if stream is not None:
                self._forget(stream)
                stream.end(pipe.unpack_error(message.error))
        elif isinstance(message, pipe.EngineAnswer):
            future = self._answers.get(message.number)
            if future is not None and not future.done():
                future.set_result(message.value)
        elif isinstance(message, pipe.Ready):
            if self.wanted:  # else it was unloaded meanwhile
                self.facts, self.ready = message.facts, True
                self._settle(None)
        elif isinstance(message, pipe.LoadingProgress):
            self.on_loading(message)
        elif isinstance(message, pipe.Failed):
            kind = MemoryShortage if message.short else ConfigError
            self._settle(kind(message.message))
        elif isinstance(message, pipe.Unloaded) and self._dropped is not None:
            self._settle(ConfigError("the model was unloaded"))  # while it was being loaded
            self._end_unload()

    def handle_lost(self) -> None:
        """The process has gone: ends all streams, and all waiting, with an error."""
        if self.ready:  # else another process had not loaded it yet
            self.lost_since = time.monotonic()
        self.ready = self.sent = self._pinged = False
        self.gauges = None  # another process computes nothing yet
        self.lost = len(self.streams)
        error = EngineDown("the engine ended while it computed this request; it is restarting")
        self._end_streams(error)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(error)
        self._end_unload()
        self.begin.fault = ""  # was meant for the first process
        self._settle(ConfigError("the engine ended before it was ready"))

    def _end_streams(self, error: EngineDown) -> None:
        streams, self.streams, self._leaders = list(self.streams.values()), {}, {}
        for stream in streams:
            stream.end(error)

    def _settle(self, error: ConfigError | None) -> None:
        """Ends the wait for the engine to be ready."""
        if not self.ready:
            self._failure = error
        if self._built is None or self._built.done():
            return
        if error is None:
            self._built.set_result(None)
        else:
            self._built.set_exception(error)

    def _take_step(self, message: pipe.StepReport) -> None:
        self.gauges = message.gauges
        self.on_step(message)
        for id in message.started:
            stream = self.streams.get(id)
            if stream is not None:
                stream.start()
        for news in message.news:
            stream = self.streams.get(news.id)
            if stream is not None:
                self._feed(stream, news)

    def _feed(self, stream: EngineStream, news: pipe.StepEvents) -> None:
        """Passes events on to a request and those that follow it."""
        if stream.key is not None:
            stream.past.append(news)
        for one in (stream, *stream.followers):
            if not one.left:
                self._feed_one(one, news)
        last = news.finish is not None or news.index in stream.stopped
        ended = last and all(one.over or one.left for one in (stream, *stream.followers))
        if ended and news.id in self.streams:
            self._forget(stream)

    def _feed_one(self, stream: EngineStream, news: pipe.StepEvents) -> None:
        leader = stream.leader or stream
        event = news.to_event()
        if leader is not stream:
            event = date_event(event, stream.collector.request.arrival)
        try:
            stopped = stream.collector.feed(event)
        except Exception as error:  # of this answer, as where its text cannot be made; of no other
            self.leave(stream)
            stream.error, stream.over = error, True
            stream.news.set()
            return
        if stopped:
            stream.stopped.add(news.index)
            if leader is stream or news.index not in leader.stopped:
                leader.stopped.add(news.index)
                self.host.send(self.number, pipe.Abort(news.id, news.index, stopped=True))
        stream.over = stream.collector.finished
        stream.news.set()
        stream.on_tokens(len(news.tokens))


def date_event(event: Event, arrival: float) -> Event:
    """An event of a request, for one that arrived later: it waited for nothing before that."""
    known = event.timings
    if known is None:
        return event
    times = (max(arrival, known.scheduled), max(arrival, known.first), max(arrival, known.last))
    return replace(event, timings=Timings(arrival, *times, known.draft_speedup))


def _shows_progress(message: Any) -> bool:
    """Whether a message shows work on a request: an engine that only answers questions, or runs
    steps without tokens, may be stuck.
    """
    if isinstance(message, pipe.StepReport):
        return bool(message.gauges.tokens or message.news or message.started)
    return isinstance(message, pipe.RequestRefused)
