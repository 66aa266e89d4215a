"""The engine process: one thread that reads messages from the pipe, and runs steps of the engines.

Invariant: an error of one engine ends nothing of another.  Engines with work share the step time by
their weights (`StepShares`).  Waits on the pipe while there is nothing to compute; ends when the
API server is gone.  Knows no HTTP and no text.
"""

import gc
import os
import select
import socket
from functools import partial
from threading import Lock
from typing import Any

from flyweight.build import LoadedModel
from flyweight.errors import ConfigError
from flyweight.resources import ProcessResources
from flyweight.server import pipe
from flyweight.server.worker.heap import trim_heap
from flyweight.server.worker.hosted import HostedEngine
from flyweight.server.worker.loading import ApiServerGone, EngineLoader, describe_engine
from flyweight.server.worker.shares import StepShares

READ = 1 << 20  # bytes at a time
QUIET = 0.5  # seconds without a message after which there is time to prepare for grammars


class Worker:
    """The engines of one pipe."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.process = line, ProcessResources.make()
        self.engines: dict[int, HostedEngine] = {}
        self.loaders: dict[int, EngineLoader] = {}
        self.shares = StepShares()
        self.frames = pipe.PipeFrames(pipe.ToEngine)
        self._sending = Lock()  # a loader sends too
        self._loaded, self._wake = os.pipe()  # a loader has ended

    def run(self) -> None:
        """Runs until the API server is gone."""
        try:
            self._serve()
        finally:
            for one in self.engines.values():
                one.engine.close()

    def _serve(self) -> None:
        while True:
            for number, message in self._read():
                self.take(number, message)
            chosen = self.shares.choose(n for n, one in self.engines.items() if one.busy)
            if chosen is not None:
                self.shares.charge(chosen, self.engines[chosen].run_step())

    def take(self, number: int, message: pipe.ToEngine) -> None:
        if isinstance(message, pipe.EngineSetup):
            gc.disable()  # nothing that loading makes is garbage
            send = partial(self._send, number)
            self.loaders[number] = EngineLoader(number, message, self.process, send, self.wake)
        elif isinstance(message, pipe.Unload):
            self._unload(number)
        elif number in self.engines:  # else it was unloaded meanwhile
            self.engines[number].take(message)

    def wake(self) -> None:
        """A loader has ended; called on its thread."""
        os.write(self._wake, b"!")

    # --- the pipe ---

    def _read(self) -> list[tuple[int, Any]]:
        """The messages that have arrived; waits for them if there is nothing to compute."""
        engines = self.engines.values()
        busy = any(one.busy for one in engines)
        tasks = [one.background for one in engines if one.background.wanted]
        unprepared = [one for one in engines if not one.engine.grammars.prepared]
        wait = 0 if busy or tasks else QUIET if unprepared else None
        waited: list[Any] = [self.line, self._loaded]
        ready = select.select(waited, [], [], wait)[0]
        if self._loaded in ready:
            os.read(self._loaded, READ)
            self._install()
        if self.line not in ready:
            if not ready and not busy:
                tasks[0].run_idle() if tasks else unprepared[0].engine.grammars.prepare()
            return []
        data = self.line.recv(READ)
        if not data:
            raise ApiServerGone
        return self.frames.push(data)

    def _send(self, number: int, message: pipe.ToFront) -> None:
        try:
            with self._sending:
                self.line.sendall(pipe.encode_frame(message, number))
        except OSError:
            raise ApiServerGone from None

    # --- engines that come and go ---

    def _install(self) -> None:
        """Takes over what loaders have built."""
        for number, loader in list(self.loaders.items()):
            if loader.dropped and (loader.loaded or loader.failed):
                del self.loaders[number], loader
                self._give_back(number)
            elif loader.loaded is not None:
                del self.loaders[number]
                self._add(number, loader)
            elif loader.failed is not None:
                del self.loaders[number]
                self.process.ledger.release(number)
                self._send(number, loader.failed)
        if not self.loaders:
            gc.freeze()  # what lives as long as its engine is not looked at again
            gc.enable()

    def _add(self, number: int, loader: EngineLoader) -> None:
        assert loader.loaded is not None and loader.settings is not None
        try:
            self.host(number, loader.loaded, loader.begin)
        except ConfigError as error:
            self.process.ledger.release(number)
            self._send(number, pipe.Failed(str(error)))
            return
        self._send(number, pipe.Ready(describe_engine(loader.loaded, loader.settings)))

    def host(self, number: int, loaded: LoadedModel, begin: pipe.EngineSetup) -> HostedEngine:
        """Takes over an engine.  Raises `ConfigError`."""
        hosted = HostedEngine(loaded, begin, partial(self._send, number))
        self.engines[number] = hosted
        self.shares.add(number, begin.weight)
        return hosted

    def _unload(self, number: int) -> None:
        """Drops an engine; one that is being loaded, as soon as it is."""
        if number in self.loaders:
            self.loaders[number].dropped = True
            return
        hosted = self.engines.pop(number, None)
        if hosted is not None:
            hosted.engine.close()
            self.shares.remove(number)
        del hosted
        self._give_back(number)

    def _give_back(self, number: int) -> None:
        """Gives back the memory of an engine that is referred to no more."""
        self.process.ledger.release(number)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        trim_heap()
        self._send(number, pipe.Unloaded())
