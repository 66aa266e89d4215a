"""A server's life: loading, serving, draining, and the end.

Invariant: at shutdown running requests are finished (a second signal does not wait), then the
engine process is ended.  The service manager is notified of each state.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Any, Protocol

import uvicorn

from flyweight.arguments.draft import SettingRequests
from flyweight.config import read_service_manager
from flyweight.describe import LoadListener
from flyweight.errors import ConfigError, FlyweightError
from flyweight.server import pipe
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.routes import find_error_format
from flyweight.server.app import make_app
from flyweight.server.engine_process import EngineProcess
from flyweight.server.lifecycle.hosts import make_host
from flyweight.server.lifecycle.loading import ModelReader, plan_entries
from flyweight.server.lifecycle.notify import ServiceNotifier
from flyweight.server.lifecycle.replacing import (
    COPY,
    ReplicaUpdates,
    check_files,
    describe_files,
)
from flyweight.server.lifecycle.running import (
    ServerRecord,
    find_own_log,
    get_start,
    remove_record,
    write_record,
)
from flyweight.server.lifecycle.updates import ModelUpdates
from flyweight.server.model_directory import ModelDirectory
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import ModelOptions, ModelSources
from flyweight.server.observability.log import LogFile, ServerLog
from flyweight.server.observability.tracing import open_tracer
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.served_model import ServedModel
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError, print_failure
from flyweight.server.transport.http_server import (
    HttpServer,
    answer_while_loading,
    limit_connections,
    make_tls_context,
)
from flyweight.server.transport.keys import ApiKeys
from flyweight.server.transport.protocol import ConnectionLimits
from flyweight.validation.replicas import find_replica_option

STOPPED = 130  # the exit code of what a signal ended before it began
POLL = 0.05  # seconds between looks at what is still running while the server drains
LAST_WORDS = 1.0  # seconds for the errors of responses that are cut off
CUT_OFF = HttpError(
    503,
    "the server stopped before the response was finished (--shutdown-timeout)",
    code="draining",
)


class ShowsLoading(LoadListener, Protocol):
    """Shows a server's start.  `found` may refuse a model by raising."""

    def found(self, path: Path) -> None: ...
    def show_progress(self, message: pipe.LoadingProgress) -> None: ...
    def ready(self, server: ApiServer, port: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """`models` are what is served, the default first; `requests` the settings that the user gave,
    for the effective configuration; `sources` give other models later.  Without `log`, the log goes
    to stderr.
    """

    models: tuple[ModelOptions, ...]
    server: ServerSettings
    show: ShowsLoading
    requests: SettingRequests
    log: LogFile | None = None
    sources: ModelSources = field(default_factory=ModelSources)


def run_server(options: LaunchOptions, sock: socket.socket, engine: EngineProcess | None) -> int:
    """Serves on `sock` with an engine process that waits for its first message; without one, with
    replicas.
    """
    context = make_tls_context(options.server)
    life = ServerLifecycle(options, engine, context)
    life.begin()
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(life.run(sock))


def _loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for every system
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class ServerLifecycle:
    """One run of the server."""

    def __init__(
        self,
        options: LaunchOptions,
        engine: EngineProcess | None,
        context: SSLContext | None = None,
    ) -> None:
        self.context, self.server, self.show = context, options.server, options.show
        self.keys = ApiKeys(self.server)
        self.notifier = ServiceNotifier(*read_service_manager())
        self.log_file = options.log
        self.log = ServerLog(self.server.log_format, options.log)
        self.tracer = open_tracer(self.server, self.log)
        self.host = make_host(options.models[0], self.server, engine, self.give_up)
        self.host.on_event = self.log.event
        self.reader = ModelReader(self.server, options.requests, self.log)
        plans = plan_entries(options.models, self.server)
        entries = [plan.make(self.server, self.host) for plan in plans]
        patience = self.server.queue_timeout
        self.directory = ModelDirectory(
            entries, self.host, self._fetch_model, self._make_model, self.log, patience
        )
        self.updates = ModelUpdates(
            options.models, options.sources, self.server, self.directory, self.log
        )
        self.api: ApiServer | None = None
        self.http: HttpServer | None = None
        self.pool: ConnectionLimits | None = None
        self.code = 0
        self._loading: asyncio.Task[ApiServer] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._reloading = set[asyncio.Task[None]]()
        self._signals = 0  # reloads of replicas that a signal has begun
        self._downloading = asyncio.Lock()
        self.replacing: ReplicaUpdates | None = None
        if isinstance(self.host, ReplicaHost):
            first = self.directory.first
            self.replacing = ReplicaUpdates(self.host, first, self.reader, self.log)
            self.updates.replicas = self.replacing

    def begin(self) -> None:
        """Lets the engine process load the first model, while its vocabulary is read here."""
        first = self.directory.first
        self.show.found(first.find(self.show))
        first.client.on_loading = self.show.show_progress
        self.host.begin(first.client)

    async def run(self, sock: socket.socket) -> int:
        self._add_signal_handlers()
        loop = asyncio.get_running_loop()
        self._loading = loop.create_task(self._load())
        try:
            early = await answer_while_loading(sock, find_error_format, self.context)
            try:
                self.api = await self._loading
            finally:
                early.close()
            self.host.restarts_lost = True
            await self._serve(self.api, sock)
        except asyncio.CancelledError:  # a signal while it loads
            self.code = STOPPED
        finally:
            remove_record(os.getpid())
            await self.host.close()
            await self.directory.close()
            if self.tracer is not None:
                self.tracer.close()
            self.log.close()
        return self.code

    def _add_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._handle_signal)
        # elsewhere it comes from a terminal that closes, and ends the server
        rereads = self.keys.files or self.updates.sources.file or find_replica_option(self.server)
        if rereads or self.notifier.address:
            loop.add_signal_handler(signal.SIGHUP, self._reload)

    async def _load(self) -> ApiServer:
        """Loads the first model, and those that are to be loaded at the start."""
        await self._note_files()
        await self.host.open()
        self._add_signal_handlers()  # Ray replaces them
        directory = self.directory
        directory.first.model = await self._read_while_loading(directory.first)
        directory.first.loads += 1
        for entry in directory.entries:
            if entry.options.preload:
                await directory.open(entry)
        directory.start_expiry()
        return ApiServer(self.server, directory, self.log, self.updates)

    async def _fetch_model(self, entry: ModelEntry) -> None:
        """Finds an entry's files, or downloads them: one model at a time, as threads are few."""
        async with nullcontext() if entry.is_here else self._downloading:
            await asyncio.to_thread(entry.find, self.show)

    async def _make_model(self, entry: ModelEntry) -> ServedModel:
        """Loads an entry's engine, and reads its vocabulary meanwhile."""
        await self._note_files()
        entry.client.load()
        try:
            return await self._read_while_loading(entry)
        except BaseException:
            await entry.client.unload()  # it may be loaded all the same
            raise

    async def _note_files(self) -> None:
        """Before replicas read them: what changes meanwhile counts as new."""
        if self.replacing is not None:
            await asyncio.to_thread(self.replacing.note_files)

    async def _read_while_loading(self, entry: ModelEntry) -> ServedModel:
        loading = asyncio.ensure_future(entry.client.wait_until_ready())
        try:
            found = await asyncio.to_thread(self.reader.describe, entry)
            with closing(found.checkpoint):
                compared = self.replacing is not None
                files = await asyncio.to_thread(describe_files, found) if compared else {}
            await loading
            check_files(files, entry.client.facts, COPY)
        except BaseException:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            raise
        return self.reader.make_model(entry, found)

    async def _serve(self, api: ApiServer, sock: socket.socket) -> None:
        server = self.server
        self.pool = pool = ConnectionLimits(server, limit_connections(server.max_connections))
        config = uvicorn.Config(
            make_app(api, self.keys, self.tracer),
            http=pool.make_protocol(),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # it would show what an exception says; `guard` notes them
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=2048,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
            root_path=server.root_path,
            ssl_certfile=server.ssl_certfile or None,
            ssl_keyfile=server.ssl_keyfile or None,
        )
        port = 0 if server.uds else sock.getsockname()[1]
        self.http = HttpServer(config, lambda _: self._ready(api, port))
        await self.http.serve([sock])

    def _ready(self, api: ApiServer, port: int) -> None:
        """From now on requests are accepted."""
        own = os.getpid()
        host, drain = self.server.host, self.server.shutdown_timeout
        log = os.path.abspath(self.log_file.path) if self.log_file else find_own_log()
        began, name = get_start(own) or 0, self.directory.first.name
        try:
            url = self.server.url(port)
            write_record(ServerRecord(own, began, host, port, name, log, drain, url))
        except OSError as error:
            self.show.warn(f"flyweight stop will not find this server: {error}")
        gc.freeze()  # what lives as long as the process is not looked at again
        gc.enable()
        self.show.ready(api, port)
        self.notifier.ready()
        self.notifier.keep_alive(asyncio.get_running_loop())

    def give_up(self, reason: str) -> None:
        """Ends the server, as the engine cannot be kept alive."""
        print(f"error: {reason}", file=sys.stderr)
        self.code = 1
        if self.http is not None:
            self.http.stop()

    def _reload(self) -> None:
        """Reads the files of keys and of models again; replicas read theirs one after another."""
        serving = self.http is not None and self.http.started and self._draining is None
        if serving:
            self.notifier.reloading()
        self._reload_keys()
        if self.replacing is not None:
            if serving:
                self._start_reload(self._replace_replicas(self.replacing))
        elif self.updates.sources.file:
            self._start_reload(self._reload_models(serving))
        elif serving:
            self.notifier.ready()

    def _start_reload(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _replace_replicas(self, replacing: ReplicaUpdates) -> None:
        """Lets replicas read the model's files again; the last of several reloads ends them all."""
        self._signals += 1
        try:
            await replacing.reload()
        finally:
            self._signals -= 1
        if self._draining is None and not self._signals:
            self.notifier.ready()

    async def _reload_models(self, serving: bool) -> None:
        """Reads the models file again; if it cannot be used, nothing changes."""
        if self.api is None:
            self.log.event("models_unchanged", problem="the first model is still being loaded")
            return
        try:
            await self.updates.reload()
        except FlyweightError:
            pass  # it is in the log
        except Exception as error:
            print_failure("the reload of models", error)
        if serving and self._draining is None:
            self.notifier.ready()

    def _reload_keys(self) -> None:
        """Reads the key files again; if one cannot be used, the keys stay as they were."""
        try:
            self.keys.reload()
            self.log.event("keys_reloaded", accepted=len(self.keys.hashes))
        except ConfigError as error:
            self.log.event("keys_unchanged", problem=error)

    def _handle_signal(self) -> None:
        self.notifier.stopping()
        if self.http is None or self.api is None:
            if self._loading is not None:
                self._loading.cancel()
            return
        if self._draining is not None:
            self.http.stop()
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain(self.api))

    async def _drain(self, api: ApiServer) -> None:
        """Accepts nothing new, and waits until all answers are sent; those that remain when the
        time is up end with an error.
        """
        api.queue.draining = True
        api.batcher.submit_all()
        assert self.http is not None and self.pool is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + self.server.shutdown_timeout
        while self.pool.answering and loop.time() < until:
            await asyncio.sleep(POLL)
        for group in tuple(api.groups):
            group.give_up(CUT_OFF)
        until = loop.time() + LAST_WORDS
        while self.pool.answering and loop.time() < until:
            await asyncio.sleep(POLL)
        self.http.stop()
