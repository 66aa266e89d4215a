"""Which servers run on this machine: records in the cache folder, and processes as in /proc.

Invariant: a process is identified by its id and its start time, so a reused id is not mistaken for
it.  A record whose process is gone is removed.  A record holds no key.  What this user may not see,
or what has just ended, is None.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from flyweight.config import PackedCacheSettings
from flyweight.errors import CheckpointError
from flyweight.validation.untrusted import read_json

PROC = Path("/proc")
LISTENING = "0A"  # of /proc/net/tcp
NAMED = 4  # words of a command line that are shown: options may hold secrets
RECORD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """`started` is in clock ticks since the machine started."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return get_start(self.pid) == self.started


def get_start(pid: int) -> int | None:
    """When a process started; None if there is none, or it has ended."""
    fields = _read_stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def measure_age(pid: int) -> float:
    """Seconds since a process started; 0 if there is none."""
    began = get_start(pid)
    if began is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK"))


def list_family(pid: int) -> list[ProcessInfo]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for one in _list_pids():
        fields = _read_stat(one)
        if fields is not None:
            parents.setdefault(int(fields[1]), []).append(one)
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        began = get_start(one)
        if began is not None:
            found.append(ProcessInfo(one, began))
        waiting += parents.get(one, [])
    return found


def measure_memory(pid: int) -> int:
    """Bytes of anonymous memory of a process; shared memory is left out."""
    try:
        text = (PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    found = re.search(r"^RssAnon:\s+(\d+) kB", text, re.M)
    return 1024 * int(found[1]) if found else 0


def find_listener(port: int) -> ProcessInfo | None:
    """The process that listens on a TCP port, if this user may see it."""
    inodes = set(_list_inodes(port))
    for pid in _list_pids() if inodes else ():
        if any(link in inodes for link in _list_open(pid)):
            began = get_start(pid)
            return ProcessInfo(pid, began) if began is not None else None
    return None


def read_command(pid: int) -> str:
    """The first words of a process's command line, up to its options."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    shown = [os.path.basename(words[0])]
    for word in words[1:NAMED]:
        if word.startswith("--"):
            break
        shown.append(word[:80])
    return " ".join(word for word in shown if word)


def _list_inodes(port: int) -> Iterator[str]:
    """Links of the sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{words[9]}]"


def _list_open(pid: int) -> Iterator[str]:
    """The open files of a process; none if it is another user's."""
    place = PROC / str(pid) / "fd"
    with suppress(OSError):
        for number in os.listdir(place):
            with suppress(OSError):  # closed meanwhile
                yield os.readlink(place / number)


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _read_stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the command's name; the first is the state."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server: its process, address, model, log file (if any), and how long it drains.  On a Unix
    socket its port is 0.
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
    """The folder of records and logs; None without a cache folder."""
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
    """The running servers, by port; records of others are removed."""
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
    """The file that this process writes stderr to; empty if there is none."""
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
