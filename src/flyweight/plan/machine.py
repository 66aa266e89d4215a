"""What this machine lets us use: cores by affinity and cgroup quota, memory by cgroup limit, and what we hold now.

Invariant: never more than the container was given.  Every figure is read afresh; nothing is cached or assumed.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from flyweight.errors import ConfigError

CGROUP = Path("/sys/fs/cgroup")
UNITS = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and bytes this process may use: `total` is the cgroup's limit or the machine's memory, `available` what is
    free of it now.
    """

    cores: int
    total: int
    available: int


def machine(root: Path = CGROUP) -> Machine:
    """Reads affinity, cgroup (v2 or v1) and /proc/meminfo."""
    info = _meminfo()
    total, available = info["MemTotal"], info["MemAvailable"]
    limit = _cgroup_memory(root)
    if limit is not None and limit < total:
        used = _read_int(root / "memory.current", root / "memory/memory.usage_in_bytes") or 0
        total, available = limit, max(0, min(available, limit - used))
    return Machine(_cores(root), total, available)


def parse_bytes(text: str, total: int) -> int:
    """`6GiB`, `512MB`, `80%` (of `total`) or plain bytes.  Raises `ConfigError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z%]*)\s*", text)
    unit = match[2].lower() if match else "?"
    if match and unit == "%":
        share = float(match[1])
        if not 0 < share <= 100:
            raise ConfigError(f"memory limit {text!r} is out of range; allowed: above 0 % to 100 %")
        return int(total * share / 100)
    scale = (UNITS | BINARY).get(unit if unit == "b" else unit.removesuffix("b"))
    if match is None or scale is None:
        raise ConfigError(f"memory limit {text!r} is not a size; write 6GiB, 512MB or 80%")
    return int(float(match[1]) * scale)


def held() -> int:
    """Proportional set size of this process, bytes: private pages plus its share of those it shares."""
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.M)
    assert found, "smaps_rollup has no Pss line"
    return int(found[1]) * 1024


def _meminfo() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {k: int(v.split()[0]) * 1024 for k, v in (line.split(":", 1) for line in lines)}


def _read_int(*paths: Path) -> int | None:
    for path in paths:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def _cgroup_memory(root: Path) -> int | None:
    return _read_int(root / "memory.max", root / "memory/memory.limit_in_bytes")


def _cores(root: Path) -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(root)
    return max(1, min(allowed, int(quota + 0.999)) if quota else allowed)


def _cpu_quota(root: Path) -> float | None:
    """Cores' worth of time the cgroup grants, or None when unlimited."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    v1_quota = _read_int(root / "cpu/cpu.cfs_quota_us")
    v1_period = _read_int(root / "cpu/cpu.cfs_period_us")
    return v1_quota / v1_period if v1_quota and v1_period else None
