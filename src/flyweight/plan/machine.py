"""What this machine lets us use: cores by affinity and cgroup quota, memory by cgroup limit, and
what we hold now.

Invariant: never more than the container was given; a limit of any group above ours counts.  Every
figure is read afresh; nothing is cached or assumed.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

ROOT = Path("/")
DEVICE_RESERVE = 1 << 30  # of a GPU: kernels, graphs, workspaces of libraries, fragments


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and bytes this process may use: `total` is the cgroup's limit or the machine's memory,
    or with `device` that of a GPU; `available` what is free of it now.
    """

    cores: int
    total: int
    available: int
    device: bool = False

    @property
    def held(self) -> int:
        """Bytes that count as held before anything is loaded: this process's own, or of a device
        all that is in use, by other processes too, and what libraries take later.
        """
        return self.total - self.available + DEVICE_RESERVE if self.device else measure_resident()


def read_machine(root: Path = ROOT) -> Machine:
    """Reads affinity, cgroups (v2 and v1) and /proc/meminfo under `root`."""
    info = _read_counts(root / "proc/meminfo")
    total, available = 1024 * info["MemTotal"], 1024 * info["MemAvailable"]
    for group in _list_groups(root, "memory"):
        limit = _read_number(group / "memory.max", group / "memory.limit_in_bytes")
        if limit is not None and limit < 1024 * info["MemTotal"]:
            total = min(total, limit)
            available = min(available, max(0, limit - _measure_unreclaimable(group)))
    return Machine(_count_cores(root), total, available)


def list_nodes(root: Path = ROOT) -> list[frozenset[int]]:
    """The cores that this process may use on each NUMA node with memory of its own; one node of all
    cores where the system does not say.
    """
    usable = _list_cores()
    folder = root / "sys/devices/system/node"
    numbers = _read_list(folder / "has_memory") or _read_list(folder / "online")
    nodes = [_read_list(folder / f"node{n}" / "cpulist") & usable for n in sorted(numbers)]
    return [node for node in nodes if node] or [usable]


def measure_resident() -> int:
    """Bytes of memory this process holds, pages it shares counted in full."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found, "/proc/self/status has no VmRSS line"
    return 1024 * int(found[1])


def measure_anonymous(pid: int) -> int:
    """Bytes of memory that a process shares with no file; 0 where it is gone."""
    return 1024 * _read_counts(Path(f"/proc/{pid}/status")).get("RssAnon", 0)


def _list_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of our cgroup and of those above it, for one controller.

    A container may see its own group as the top while /proc still names it from outside; such
    folders do not exist and are passed over.
    """
    base = root / "sys/fs/cgroup"
    for line in _read_lines(root / "proc/self/cgroup") or ["0::/"]:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = base / controller if controllers else base
        group = top / path.strip("/")
        yield from (g for g in (group, *group.parents) if g.is_relative_to(top) and g.is_dir())


def _measure_unreclaimable(group: Path) -> int:
    """Bytes in use that are not just cached files."""
    used = _read_number(group / "memory.current", group / "memory.usage_in_bytes") or 0
    stat = _read_counts(group / "memory.stat")
    return used - stat.get("inactive_file", 0) - stat.get("active_file", 0)


def _count_cores(root: Path) -> int:
    quotas = [q for group in _list_groups(root, "cpu") if (q := _read_quota(group)) is not None]
    return max(1, min([len(_list_cores()), *map(ceil, quotas)]))


def _list_cores() -> frozenset[int]:
    """By affinity; all where the system has none."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _read_quota(group: Path) -> float | None:
    """Cores' worth of time a cgroup grants; None when unlimited."""
    words = " ".join(_read_lines(group / "cpu.max")).split()
    if len(words) == 2 and words[0].isdigit():
        return int(words[0]) / int(words[1])
    quota = _read_number(group / "cpu.cfs_quota_us")
    period = _read_number(group / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _read_counts(path: Path) -> dict[str, int]:
    """Lines of a name and a number, with or without a colon and a unit."""
    rows = [line.replace(":", " ").split() for line in _read_lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read_list(path: Path) -> frozenset[int]:
    """The numbers of a list such as 0-3,8; none of a file that cannot be read."""
    ranges = [part.partition("-") for part in "".join(_read_lines(path)).split(",")]
    return frozenset(
        number
        for first, _, last in ranges
        if first.strip().isdigit()
        for number in range(int(first), int(last or first) + 1)
    )


def _read_number(*paths: Path) -> int | None:
    """The first file that holds a number; "max" and -1 mean there is no limit."""
    for path in paths:
        text = "".join(_read_lines(path)).strip()
        if text.isdigit():
            return int(text)
    return None


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
