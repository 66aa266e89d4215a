"""A server's life: loading, serving, draining, and the end.

Invariant: at shutdown running requests are finished (a second signal does not wait), then the
engine process is ended.  A name that clients are shown never contains a file's path.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from ssl import SSLContext
from typing import NamedTuple, Protocol

import uvicorn

from flyweight.arguments.draft import SettingRequests
from flyweight.config import Settings, read_fault
from flyweight.describe import (
    DEFAULT_MODEL,
    INSIDE,
    LoadListener,
    ModelDescription,
    check_quality,
    describe,
    find,
)
from flyweight.errors import ConfigError, RequestError
from flyweight.requests.preparing import RequestChecks, RequestPreparer, read_generation_options
from flyweight.server import pipe
from flyweight.server.api_server import ApiServer
from flyweight.server.apis.routes import find_error_format
from flyweight.server.app import make_app
from flyweight.server.chat_format import check_template_defaults
from flyweight.server.engine_client import EngineClient
from flyweight.server.engine_process import EngineProcess
from flyweight.server.lifecycle.running import (
    ServerRecord,
    find_own_log,
    get_start,
    remove_record,
    write_record,
)
from flyweight.server.observability.effective_config import EffectiveConfiguration, summarize_model
from flyweight.server.observability.log import LogFile, ServerLog
from flyweight.server.served_model import ServedModel
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.errors import HttpError
from flyweight.server.transport.http_server import (
    HttpServer,
    answer_while_loading,
    limit_connections,
    make_tls_context,
)
from flyweight.server.transport.protocol import ConnectionLimits
from flyweight.text.chat import PLAIN, TemplateFault, try_out
from flyweight.text.codec import DEFAULT
from flyweight.text.template_reads import list_variables
from flyweight.text.tokenizer import Tokenizer
from flyweight.validation.untrusted import shown

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
    """`requests` are the settings that the user gave, for the effective configuration; without
    `log`, the log goes to stderr.
    """

    settings: Settings
    server: ServerSettings
    show: ShowsLoading
    requests: SettingRequests
    log: LogFile | None = None


class ServedName(NamedTuple):
    """A model's name; `also` are names that requests may use and that are never shown."""

    name: str
    also: frozenset[str] = frozenset()


def name_model(model: str | os.PathLike[str] | None) -> ServedName:
    """A file or folder is called by its own name, and requests may also use its path; a model of
    the Hub has its name there.
    """
    given = str(model or DEFAULT_MODEL)
    path = os.path.expanduser(given)
    if given in INSIDE or not os.path.exists(path):
        return ServedName(given)
    whole = os.path.abspath(path)
    return ServedName(os.path.basename(whole) or "model", frozenset({given, path, whole}))


def choose_names(
    model: str | os.PathLike[str] | None, given: Sequence[str], adapters: Collection[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names that clients are shown, and other names that requests may use.  Raises
    `ConfigError` if an adapter has one of these names.
    """
    own = name_model(model)
    names, also = (tuple(given), frozenset[str]()) if given else ((own.name,), own.also)
    taken = [name for name in adapters if name in names or name in also]
    if taken:
        raise ConfigError(
            f"--lora-modules: {shown(taken[0])} is the model's own name; allowed: another name for "
            "the adapter, or another --served-model-name"
        )
    return names, also


def run_server(options: LaunchOptions, sock: socket.socket, engine: EngineProcess) -> int:
    """Serves on `sock` with an engine process that waits for its first message."""
    settings, server = options.settings, options.server
    context = make_tls_context(server)
    choose_names(settings.model, server.served_model_name, settings.adapters)
    path = find(settings, options.show)
    options.show.found(path)
    given = pipe.to_portable({name: getattr(settings, name) for name in settings.__slots__})
    life = ServerLifecycle(options, path, context)
    given["model"] = str(path)
    pace = server.target_step_time, server.max_prefill_delay
    begin = pipe.EngineSetup(given, *pace, read_fault())
    life.client = EngineClient(begin, life.take_step, life.give_up, server.engine_timeout)
    life.client.on_loading = options.show.show_progress
    line = life.client.adopt(engine)  # it loads the model while we read its vocabulary
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(life.run(sock, line))


def set_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """The tokenizer with the operator's chat template, if there is one; without any template,
    messages are plain text.
    """
    if not template and tokenizer.marks.templates:
        return tokenizer
    marks = replace(tokenizer.marks, templates={DEFAULT: template or PLAIN})
    return replace(tokenizer, marks=marks)


def _loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for every system
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class ServerLifecycle:
    """One run of the server."""

    client: EngineClient

    def __init__(
        self, options: LaunchOptions, path: Path, context: SSLContext | None = None
    ) -> None:
        self.context = context
        self.settings, self.server = options.settings, options.server
        self.show, self.requests, self.path = options.show, options.requests, path
        self.log = options.log
        self.api: ApiServer | None = None
        self.http: HttpServer | None = None
        self.pool: ConnectionLimits | None = None
        self.code = 0
        self._loading: asyncio.Task[ApiServer] | None = None
        self._draining: asyncio.Task[None] | None = None

    async def run(self, sock: socket.socket, line: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._handle_signal)
        self._loading = loop.create_task(self._load(line))
        try:
            early = await answer_while_loading(sock, find_error_format, self.context)
            try:
                self.api = await self._loading
            finally:
                early.close()
            await self._serve(self.api, sock)
        except asyncio.CancelledError:  # a signal while it loads
            self.code = STOPPED
        finally:
            remove_record(os.getpid())
            await self.client.close()
            if self.api is not None:
                for model in self.api.models:
                    await model.validator.close()
                self.api.log.close()
        return self.code

    async def _load(self, line: socket.socket) -> ApiServer:
        """Reads the vocabulary here, and the model in the engine process, at the same time."""
        connecting = asyncio.ensure_future(self.client.connect(line))
        try:
            found = await asyncio.to_thread(self._describe)
            found.checkpoint.close()
            await connecting
        except BaseException:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            raise
        return self._make_server(found)

    def _describe(self) -> ModelDescription:
        """The model without its tensors; checks the operator's template.  Raises `ConfigError`."""
        found = describe(self.path, self.settings.quantization)
        check_quality(self.settings, found.quality)
        given = self.server.chat_template
        try:
            if given:
                try_out(given, found.tokenizer, self.server.templates)
        except RequestError as error:
            found.checkpoint.close()
            line = f", line {error.line}" if isinstance(error, TemplateFault) else ""
            raise ConfigError(f"{line}{error.problem}", "--chat-template") from None
        # what they read is remembered, and seen while the engine loads
        templates = set_template(found.tokenizer, given).marks.templates.values()
        reads = [list_variables(one) for one in templates]
        check_template_defaults(self.server.template_defaults, reads)
        return found

    def _make_server(self, found: ModelDescription) -> ApiServer:
        facts = self.client.facts
        checks = RequestChecks(
            facts["vocab"], facts["max_model_len"], facts["scored"], found.stop_ids,
            tuple(facts["adapters"]), self.settings.max_logprobs,
        )  # fmt: skip
        tokenizer = set_template(found.tokenizer, self.server.chat_template)
        parser = self.server.reasoning_parser
        preparer = RequestPreparer(tokenizer, checks, self.settings.seed, reasoning=parser)
        theirs = found.checkpoint.generation if self.server.model_defaults else {}
        defaults = {**read_generation_options(theirs), **self.server.sampling_defaults}
        defaults = {name: value for name, value in defaults.items() if value is not None}
        names, also = choose_names(
            self.settings.model, self.server.served_model_name, self.settings.adapters
        )
        effective = EffectiveConfiguration(
            self.settings, self.server, self.requests, facts, summarize_model(found)
        )
        log = ServerLog(self.server.log_format)
        log.to = self.log
        if tokenizer.chat_template == PLAIN:
            log.event("chat_template", model="none", used="messages as plain text")
        model = ServedModel(
            self.server, self.client, preparer, defaults, names, also, effective, log
        )
        effective.add_chat_format(model.chat_format)
        self.client.on_event = log.event
        return ApiServer(self.server, [model], log)

    async def _serve(self, api: ApiServer, sock: socket.socket) -> None:
        server = self.server
        self.pool = pool = ConnectionLimits(server, limit_connections(server.max_connections))
        config = uvicorn.Config(
            make_app(api),
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
        log = os.path.abspath(self.log.path) if self.log else find_own_log()
        began = get_start(own) or 0
        try:
            url = self.server.url(port)
            write_record(ServerRecord(own, began, host, port, api.find().names[0], log, drain, url))
        except OSError as error:
            self.show.warn(f"flyweight stop will not find this server: {error}")
        gc.freeze()  # what lives as long as the process is not looked at again
        gc.enable()
        self.show.ready(api, port)

    def take_step(self, message: pipe.StepReport) -> None:
        """Each step since the server is ready."""
        if self.api is not None:
            model = self.api.find()
            model.observer.observe_step(message)
            for warning in model.effective.note(model.counts):
                self.api.log.event("no_effect", warning=warning)

    def give_up(self, reason: str) -> None:
        """Ends the server, as the engine cannot be kept alive."""
        print(f"error: {reason}", file=sys.stderr)
        self.code = 1
        if self.http is not None:
            self.http.stop()

    def _handle_signal(self) -> None:
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
