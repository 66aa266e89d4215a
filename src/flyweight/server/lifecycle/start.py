"""Starting a server: the port first, then the engine process, then the rest.

Invariant: the port is taken before the model is loaded, so that a busy port is refused at once.
The engine process is started before this process imports its own modules, so that both import at
the same time.
"""

import errno
import gc
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from flyweight.arguments.draft import SettingRequests
from flyweight.errors import ConfigError
from flyweight.plan.machine import read_machine
from flyweight.server.engine_process import EngineProcess
from flyweight.server.lifecycle.running import find_listener, list_running, read_command
from flyweight.server.model_options import ModelOptions, ModelSources
from flyweight.server.observability.log import LogFile
from flyweight.server.settings import ServerSettings
from flyweight.validation.replicas import find_replica_option

NO_SOURCES = ModelSources()
NEEDED = 72 << 20  # bytes both processes hold before there is a model
TRACING = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")

if TYPE_CHECKING:  # heavy modules are imported while the engine starts
    from flyweight.server.lifecycle.lifecycle import ShowsLoading


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on.  Raises `ConfigError`, also if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"on {host} is in use{_describe_holder(port)}", "port", value=port
            ) from None
        raise ConfigError(f", port = {port}: {error.strerror}", "host", value=host) from None
    return sock


def listen_on_path(path: str) -> socket.socket:
    """The Unix socket to serve on; an abandoned one is replaced.  Raises `ConfigError`, also if a
    server listens there.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
                os.unlink(path)
        sock.bind(path)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                "exists already; remove it, or name another", "uds", value=path
            ) from None
        raise ConfigError(f": {error.strerror or error}", "uds", value=path) from None
    return sock


def _answers(path: str) -> bool:
    """Whether a server listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(path) == 0


def _describe_holder(port: int) -> str:
    """The process that uses a port, and what to do."""
    holder = find_listener(port)
    if holder is None:
        return "; take another --port (0 is any that is free)"
    ours = any(record.pid == holder.pid for record in list_running())
    stop = f", or flyweight stop --port {port}" if ours else ""
    who = f"process {holder.pid} ({read_command(holder.pid)})"
    return f" by {who}; take another --port (0 is any that is free){stop}"


def check_memory() -> None:
    """Raises `ConfigError` where the system would end a process before a model's plan is made."""
    free = read_machine().available
    if free < NEEDED:
        raise ConfigError(
            f"{free >> 20} MiB of memory are free here; a server needs {NEEDED >> 20} MiB before "
            "its model is read"
        )


def check_trace_packages(server: ServerSettings) -> None:
    """Raises `ConfigError` where traces are to be sent and the packages for that are missing."""
    if server.otlp_traces_endpoint and not all(map(_is_installed, TRACING)):
        raise ConfigError(
            "needs OpenTelemetry's SDK and its exporter",
            "--otlp-traces-endpoint",
            hint="pip install 'flyweight[otel]'",
        )


def check_replicas(
    models: Sequence[ModelOptions], server: ServerSettings, sources: ModelSources
) -> None:
    """Raises `ConfigError` where there are to be replicas and Ray is missing, or an option is given
    that they do not have.
    """
    option = find_replica_option(server)
    if not option:
        return
    if not _is_installed("ray"):
        raise ConfigError("needs Ray", option, hint="pip install 'flyweight[distributed]'")
    settings = models[0].settings
    alone = ": replicas do not exchange blocks"
    given = {
        "several models": len(models) > 1,
        "--models-file": bool(sources.file),
        "--allow-pull": server.allow_pull,
        f"--prefix-cache-peers{alone}": bool(settings.prefix_cache_peers),
        f"--prefix-cache-listen{alone}": bool(settings.prefix_cache_listen),
        f"--prefix-cache-secret-file{alone}": settings.prefix_cache_secret_file is not None,
        "--nnodes": settings.nnodes > 1,
    }
    for name in (name for name, found in given.items() if found):
        raise ConfigError(f"cannot be combined with {name}", option, hint="leave one of them out")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def open_log_file(server: ServerSettings) -> LogFile | None:
    """Raises `ConfigError` where it cannot be written."""
    if not server.log_file:
        return None
    return LogFile(Path(server.log_file).expanduser(), server.log_file_bytes)


def serve(
    models: Sequence[ModelOptions],
    server: ServerSettings,
    show: "ShowsLoading",
    requests: SettingRequests,
    sources: ModelSources = NO_SOURCES,
) -> int:
    """Serves models until a signal ends it, and returns the exit code; the first is the default.
    `requests` go into the effective configuration; `sources` give other models later.
    """
    check_trace_packages(server)
    check_replicas(models, server, sources)
    check_memory()
    log = open_log_file(server)
    sock = listen_on_path(server.uds) if server.uds else listen(server.host, server.port)
    engine = None if find_replica_option(server) else EngineProcess.spawn()
    gc.disable()  # nothing a start makes is garbage; it is set aside once requests are taken
    try:
        from flyweight.server.lifecycle.hosts import divide_machine
        from flyweight.server.lifecycle.lifecycle import LaunchOptions, run_server

        models = [divide_machine(one, server) for one in models]
        options = LaunchOptions(tuple(models), server, show, requests, log, sources)
        return run_server(options, sock, engine)
    finally:
        if engine is not None:
            engine.end()
        if server.uds:
            with suppress(OSError):
                os.unlink(server.uds)
