"""The machine a figure was taken on: processor, cores, versions, and what else ran meanwhile.

Invariant: read from the system each time; a figure that cannot be read is left out, never guessed.
"""

import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyweight import __version__
from flyweight.plan.machine import read_machine

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where figures were taken; the same for every row of a run."""

    cpu: str
    cores: int
    memory: int
    version: str
    commit: str

    @classmethod
    def here(cls) -> "Surroundings":
        found = read_machine()
        return cls(cpu_name(), found.cores, found.total, __version__, commit())


def cpu_name(root: Path = PROC) -> str:
    """The processor as the system calls it."""
    try:
        text = (root / "cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def commit(package: Path = Path(__file__).parent) -> str:
    """The commit of a checkout, with a + where files were changed; nothing for an installed
    package.
    """
    words = ["git", "-C", str(package), "describe", "--always", "--dirty=+", "--abbrev=7"]
    tracked = ["git", "-C", str(package), "ls-files", "--error-unmatch", Path(__file__).name]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=10)
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


class OtherProcesses:
    """Cores that other processes used since this was made; those in `ours` are not others."""

    def __init__(self, ours: Sequence[int] = (), root: Path = PROC) -> None:
        self._ours, self._root = ours, root
        self._clock, self._others = time.monotonic(), self._read()

    def cores(self) -> float:
        """A share of seconds: 1.0 is one whole core."""
        seconds = time.monotonic() - self._clock
        return max(0.0, (self._read() - self._others) / seconds) if seconds > 0 else 0.0

    def _read(self) -> float:
        """Seconds of processor time all others have used, the machine's guests excluded."""
        line = (self._root / "stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq = map(int, line[:7])
        own = sum(_cpu_seconds(resource.getrusage(who)) for who in _SELVES)
        own += sum(process_seconds(pid, self._root) for pid in self._ours)
        return (user + nice + system + irq + softirq) / TICKS - own


_SELVES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _cpu_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def process_seconds(pid: int, root: Path = PROC) -> float:
    """Processor time of a live process; 0 for one that is gone."""
    try:
        after_name = (root / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / TICKS  # utime, stime
