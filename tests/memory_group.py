"""A cgroup of a test's own, with a bound on the memory of what enters it."""

import os
import time
from pathlib import Path
from typing import Self

import pytest

ROOT = Path("/sys/fs/cgroup")


class MemoryGroup:
    """v1 or v2, below the group this process is in; skips the test where none can be made."""

    def __init__(self, most: int) -> None:
        top, bound, self.events = place()
        self.path = top / f"flyweight-test-{os.getpid()}"
        try:
            self.path.mkdir()
            (self.path / bound).write_text(str(most))
        except OSError:
            self.__exit__()
            pytest.skip("no cgroup can be made here")

    def enter(self) -> None:
        """Called in a new process."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def killed(self) -> int:
        """How many processes the system has ended because the memory was used up."""
        rows = (self.path / self.events).read_text().splitlines()
        (row,) = [row for row in rows if row.startswith("oom_kill ")]
        return int(row.split()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _ in range(200 if self.path.is_dir() else 0):
            try:
                self.path.rmdir()
                return
            except OSError:  # the last of its processes is on its way out
                time.sleep(0.05)


def place() -> tuple[Path, str, str]:
    """Where groups of ours may be, and the files for the bound and for what it caused."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            own = ROOT / "memory" / path.strip("/")
            top = own if own.is_dir() else ROOT / "memory"
            return top, "memory.limit_in_bytes", "memory.oom_control"
    return ROOT, "memory.max", "memory.events"
