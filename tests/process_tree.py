"""Processes of this machine, as /proc shows them: those that one has started, and those that have a
variable.
"""

import os
from contextlib import suppress
from pathlib import Path


def list_descendants(pid: int) -> set[int]:
    """A process, what it started, what that started, and so on."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def list_marked(name: str, value: str) -> set[int]:
    """Processes other than this one that began with this variable, whoever their parent is now."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if f"{name}={value}".encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found - {os.getpid()}
