"""`flyweight stop`: ends a server of ours and waits until it is gone."""

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.server.lifecycle.running import ServerRecord

POLL, SPARE = 0.05, 15.0  # seconds beyond the drain that an end may take
NOTICE_AFTER = 1.0  # seconds until it is said what is waited for

Port = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="Port of the server to stop.  [default: the only server's]"),
]
Every = Annotated[bool, typer.Option("--all", help="Stop all servers.")]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for running answers.")]


def stop(port: Port = None, every: Every = False, now: Now = False) -> int:
    """Stop a server; it finishes its running answers first."""
    from flyweight.server.lifecycle import running

    found = running.list_running()
    if port is not None:
        found = [record for record in found if record.port == port]
    if not found:
        raise ConfigError(refuse_missing(port))
    if len(found) > 1 and not every:
        ports = ", ".join(f"{record.port} ({record.model})" for record in found)
        raise ConfigError(f"{len(found)} servers run; give --port or --all; ports: {ports}")
    return max(stop_server(record, now) for record in found)


def refuse_missing(port: int | None) -> str:
    """Why there is nothing to stop."""
    from flyweight.server.lifecycle import running

    ports = ", ".join(str(record.port) for record in running.list_running()) or "none"
    if port is None:
        return "no flyweight server is running"
    holder = running.find_listener(port)
    if holder is not None:
        who = f"process {holder.pid} ({running.read_command(holder.pid)})"
        return (
            f"--port = {port} is held by {who}, which is not a flyweight server; servers: {ports}"
        )
    return f"--port = {port}: no flyweight server listens there; servers: {ports}"


def stop_server(record: "ServerRecord", now: bool) -> int:
    """Ends one server; 0 once all its processes are gone."""
    from flyweight.plan.memory import format_size
    from flyweight.server.lifecycle.running import list_family, measure_memory

    members = list_family(record.pid)
    held = sum(measure_memory(one.pid) for one in members)
    began = time.monotonic()
    wait = SPARE + (0 if now else record.drain)
    noticed = sent = False
    while alive := [one for one in members if one.alive]:
        seconds = time.monotonic() - began
        if record.process.alive and (not sent or (now and seconds > POLL)):
            os.kill(record.pid, signal.SIGTERM)  # a second one does not wait
            sent, now = True, now and not sent
        if seconds > NOTICE_AFTER and not noticed and record.process.alive:
            noticed = True
            typer.echo(f"waiting for what is being answered, {record.drain:g} s at most", err=True)
        if seconds > wait:
            ids = ", ".join(str(one.pid) for one in alive)
            typer.echo(f"{record.url} still runs after {seconds:.0f} s: process {ids}", err=True)
            return 1
        time.sleep(POLL)
    seconds = time.monotonic() - began
    print(f"stopped {record.url} (pid {record.pid}) after {seconds:.1f} s; "
          f"{format_size(held)} given back")  # fmt: skip
    return 0
