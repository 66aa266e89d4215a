"""The engine process as the API server sees it: started, and started again if it dies.

Invariant: a message goes to the client of the engine that its frame names; when the process ends,
every client learns it at once, another process is started, and it loads what was loaded.  One of
several engines that cannot be loaded again is given up, and the others go on.  Runs on one event
loop; knows no HTTP and no request.
"""

import asyncio
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, Protocol, cast

import msgspec

from flyweight.errors import ConfigError, EngineError, FlyweightError
from flyweight.server import pipe
from flyweight.server.engine_process import EngineProcess, wait_or_kill

SOONEST, LATEST = 0.2, 10.0  # seconds before another process is started, doubled each time
SETTLED = 60.0  # seconds after which a process counts as having lived
TRIES = 5  # processes in a row that did not
MOST_DEATHS = 2  # processes that may end while they load one engine of several


class EngineListener(Protocol):
    """The client of one engine.  `wanted`: it is loaded, or will be again once the process has
    restarted; `sent`: this process loads it, or has; `lost` counts the requests that the last
    end of the process ended.
    """

    number: int
    wanted: bool
    sent: bool
    lost: int

    def begin_loading(self) -> pipe.EngineSetup: ...
    def load(self) -> None: ...
    async def wait_until_ready(self) -> None: ...
    def take(self, message: Any) -> None: ...
    def handle_lost(self) -> None: ...


class Host(Protocol):
    """Where the engines of `clients` run, by their numbers: one process, or replicas of it.
    `progressed` is when a request of any of them made progress last.
    """

    progressed: float
    on_event: Callable[..., None]
    on_given_up: Callable[[int, FlyweightError], Awaitable[None]] | None
    restarts_lost: bool

    @property
    def connected(self) -> bool: ...
    @property
    def restarting(self) -> bool: ...
    @property
    def restarts(self) -> int: ...
    def add(self, client: EngineListener) -> int: ...
    def remove(self, number: int) -> None: ...
    def begin(self, *clients: EngineListener) -> None: ...
    async def open(self) -> None: ...
    def send(self, number: int, message: pipe.ToEngine) -> None: ...
    def send_together(self) -> AbstractContextManager[None]: ...
    def kill(self) -> None: ...
    async def close(self) -> None: ...


class EngineHost:
    """One engine process and its `clients`, by their engines' numbers.  `on_event` gets the name
    and facts of what happens to the process; `on_failure` is called if processes die as soon as
    they are started, `on_given_up` with the number of an engine that cannot be loaded again.
    """

    def __init__(
        self, on_failure: Callable[[str], None], engine: EngineProcess | None = None
    ) -> None:
        """`engine` waits for its first message."""
        self.on_failure, self._engine = on_failure, engine
        self.on_event: Callable[..., None] = lambda name, **facts: None
        self.on_given_up: Callable[[int, FlyweightError], Awaitable[None]] | None = None
        self.clients: dict[int, EngineListener] = {}
        self.progressed = 0.0
        self.restarts = 0
        self.restarts_lost = False  # set once the server is ready
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None
        self._line: asyncio.WriteTransport | None = None
        self._together: list[bytes] | None = None  # frames to be written at once
        self._closing = False
        self._again: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._line is not None

    @property
    def restarting(self) -> bool:
        """Whether the process is gone, or has not loaded again what was loaded."""
        return self._line is None or not self.restarts_lost

    def add(self, client: EngineListener) -> int:
        """Adds a client; the number of its engine."""
        number = next(one for one in count() if one not in self.clients)
        self.clients[number] = client
        return number

    def remove(self, number: int) -> None:
        """Removes a client whose engine was unloaded; its number may be used again."""
        del self.clients[number]

    def begin(self, *clients: EngineListener) -> None:
        """Lets the process that was started load the engines of `clients` at once, before there is
        an event loop.
        """
        assert self._engine is not None, "a process was given"
        self._ours = self.adopt(self._engine, *clients)

    async def open(self) -> None:
        """From now on messages arrive."""
        assert self._ours is not None, "it has begun"
        await self.connect(self._ours)

    def adopt(self, engine: EngineProcess, *clients: EngineListener) -> socket.socket:
        """Takes over a process that was started, and lets it load the engines of `clients` at once;
        the pipe to it.  There need not be an event loop yet.
        """
        self._process = engine.process
        for one in clients:
            engine.line.sendall(pipe.encode_frame(one.begin_loading(), one.number))
        engine.line.setblocking(False)
        return engine.line

    async def connect(self, ours: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: _Line(self), sock=ours)
        self._line = cast(asyncio.WriteTransport, transport)  # uvloop has classes of its own

    def send(self, number: int, message: pipe.ToEngine) -> None:
        """Sends a message to an engine; nothing where there is no process."""
        if self._line is None:
            return
        frame = pipe.encode_frame(message, number)
        if self._together is None:
            self._line.write(frame)
        else:
            self._together.append(frame)

    @contextmanager
    def send_together(self) -> Iterator[None]:
        """What is sent meanwhile is written at once, so that the engine reads all of it before its
        next step.
        """
        frames = self._together = list[bytes]()
        try:
            yield
        finally:
            self._together = None
            if frames and self._line is not None:
                self._line.write(b"".join(frames))

    def kill(self) -> None:
        """Kills a process that hangs, or sends invalid messages."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Ends the process by closing its pipe."""
        self._closing = True
        if self._again is not None:
            self._again.cancel()
        if self._line is not None:
            self._line.abort()
        if self._process is not None:
            await asyncio.to_thread(wait_or_kill, self._process)

    def handle_lost(self) -> None:
        """The process has gone."""
        self._line = None
        for one in self.clients.values():
            one.handle_lost()
        if not self.restarts_lost or self._closing:
            return
        self.restarts_lost = False
        lost = sum(one.lost for one in self.clients.values())
        self.on_event("engine_ended", requests=lost)
        self._again = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        wait, tries = SOONEST, 0
        deaths = Counter[int]()
        while tries < TRIES:
            if self._process is not None:
                await asyncio.to_thread(wait_or_kill, self._process)
            await asyncio.sleep(wait)
            self.restarts += 1
            born, wanted = time.monotonic(), self._count_wanted()
            try:
                await self.connect(self.adopt(EngineProcess.spawn()))
                await self._load_again(deaths)
                self.restarts_lost = True
                self.on_event("engine_ready", restarts=self.restarts)
                return
            except (FlyweightError, OSError) as error:
                settled = time.monotonic() - born > SETTLED or self._count_wanted() < wanted
                tries = 0 if settled else tries + 1
                wait = min(LATEST, 2 * wait)
                reason = str(error)
        self.on_failure(f"the engine could not be restarted: {reason}")

    def _count_wanted(self) -> int:
        return sum(client.wanted for client in self.clients.values())

    async def _load_again(self, deaths: Counter[int]) -> None:
        """Loads the wanted engines one after another, so that it is known which of them ends the
        process; `deaths` counts that.  Raises `FlyweightError` where another process is needed.
        """
        for number, client in list(self.clients.items()):
            if not self.connected:
                break
            if not client.wanted or client.sent:  # a request has begun to load it since
                continue
            client.load()
            try:
                await client.wait_until_ready()
            except ConfigError as error:
                if not client.wanted:  # it was unloaded meanwhile
                    continue
                deaths[number] += not self.connected
                fatal = not self.connected and deaths[number] < MOST_DEATHS
                if fatal or len(self.clients) == 1:
                    raise
                client.wanted = False
                if self.on_given_up is not None:
                    await self.on_given_up(number, error)
        if not self.connected:
            raise EngineError("the engine process ended while it was started")


class _Line(asyncio.Protocol):
    """The API server's side of the pipe."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._frames = pipe.PipeFrames(pipe.ToFront)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.push(data)
        except (msgspec.DecodeError, ValueError):
            self._host.kill()
            return
        for number, message in messages:
            client = self._host.clients.get(number)
            if client is not None:
                client.take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._host.handle_lost()
