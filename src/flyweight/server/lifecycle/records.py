"""Which servers of ours run: a small file for each in the cache folder, while it takes requests.

Invariant: a record speaks of a process by its id and the moment it began; one whose process is gone
is stale, is never believed, and is removed by whoever reads it.  It holds no key.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flyweight.config import PackedCacheSettings
from flyweight.errors import CheckpointError
from flyweight.server.lifecycle.processes import ProcessInfo
from flyweight.validation.untrusted import read_json

RECORD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server: its process, where it listens, what it serves, its log where it has a file of one,
    how long it drains, and its address.  On a Unix socket its port is 0.
    """

    pid: int
    begun: int
    host: str
    port: int
    model: str
    log: str
    drain: float
    url: str

    @property
    def process(self) -> ProcessInfo:
        return ProcessInfo(self.pid, self.begun)


def get_folder() -> Path | None:
    """Where records and logs are; None where this user has no place for them."""
    cache = PackedCacheSettings.of_environment().folder
    return None if cache is None else cache / "servers"


def write_record(record: ServerRecord) -> None:
    """Raises `OSError` where it cannot be kept."""
    place = get_folder()
    if place is None:
        raise OSError("there is no cache folder")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = place / f".{record.pid}.new"
    new.write_text(json.dumps(asdict(record)))
    new.chmod(0o600)
    new.rename(place / f"{record.pid}.json")


def remove_record(pid: int) -> None:
    place = get_folder()
    if place is not None:
        with suppress(OSError):
            (place / f"{pid}.json").unlink()


def list_running() -> list[ServerRecord]:
    """Servers that run, by port; what is left of others is removed."""
    place = get_folder()
    found: list[ServerRecord] = []
    for path in sorted(place.glob("*.json")) if place is not None else []:
        record = _read(path)
        if record is not None and record.process.alive:
            found.append(record)
        else:
            with suppress(OSError):
                path.unlink()
    return sorted(found, key=lambda record: (record.port, record.pid))


def find_own_log() -> str:
    """The file this process writes its stderr to; empty where that is none."""
    with suppress(OSError):
        path = os.readlink("/proc/self/fd/2")
        if os.path.isfile(path):
            return path
    return ""


def _read(path: Path) -> ServerRecord | None:
    try:
        given: dict[str, Any] = read_json(path)
        record = ServerRecord(**given)
    except (CheckpointError, TypeError):
        return None
    kinds = {int: int, str: str, float: int | float}
    plain = all(isinstance(getattr(record, f.name), kinds[f.type]) for f in fields(ServerRecord))  # type: ignore[index]
    return record if plain else None
