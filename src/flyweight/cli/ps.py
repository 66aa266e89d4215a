"""`flyweight ps`: the running servers, and the models that each serves.

Invariant: a server that does not answer in time, or wants a key, is listed by what its record has.
"""

import http.client
import json
import socket
import ssl
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.config import read_server_key

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.server.lifecycle.running import ServerRecord

PATIENCE = 2.0  # seconds
HEAD = ("PID", "ADDRESS", "MODEL", "STATE", "MEMORY")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON list.")]


def ps(as_json: AsJson = False) -> int:
    """List the running servers and their models."""
    from flyweight.plan.memory import format_size
    from flyweight.server.lifecycle.running import list_family, list_running, measure_memory

    found: list[dict[str, Any]] = []
    for record in list_running():
        held = sum(measure_memory(one.pid) for one in list_family(record.pid))
        models = ask_models(record) or [{"name": record.model, "state": "unknown"}]
        server = {"pid": record.pid, "url": record.url, "memory": held, "models": models}
        found.append(server)
    if as_json:
        print(json.dumps(found))
        return 0
    rows = [
        (
            str(one["pid"]),
            one["url"],
            each["name"],
            describe_state(each),
            format_size(one["memory"]),
        )
        for one in found
        for each in one["models"]
    ]
    wide = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    for row in (HEAD, *rows):
        cells = zip(row, wide, strict=True)
        print("  ".join(f"{cell:<{size}}" for cell, size in cells).rstrip())
    return 0


def describe_state(model: dict[str, Any]) -> str:
    """`loaded`; of a load under way, `loading, 12 s`."""
    seconds = model.get("loading_seconds")
    return str(model["state"]) if seconds is None else f"{model['state']}, {seconds:.0f} s"


def ask_models(record: "ServerRecord") -> list[dict[str, Any]]:
    """The models of a server and their states; none where it does not tell."""
    line = connect(record)
    _, key = read_server_key()
    head = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        line.request("GET", "/v1/models", headers=head)
        reply = line.getresponse()
        found = json.loads(reply.read()) if reply.status == 200 else {}
        return [
            {
                "name": one["id"],
                "state": one["state"],
                "loading_seconds": one.get("loading_seconds"),
            }
            for one in found.get("data", ())
        ]
    except (OSError, http.client.HTTPException, ValueError):
        return []
    finally:
        line.close()


def connect(record: "ServerRecord") -> http.client.HTTPConnection:
    if record.port == 0:
        return UnixConnection(record.url.removeprefix("unix:"))
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(record.host, record.host)
    if record.url.startswith("https:"):  # the certificate may name any host
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection(host, record.port, timeout=PATIENCE, context=context)
    return http.client.HTTPConnection(host, record.port, timeout=PATIENCE)


class UnixConnection(http.client.HTTPConnection):
    """To a server on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)
