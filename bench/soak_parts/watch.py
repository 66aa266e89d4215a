"""Memory, open files and threads of the server's processes, and what grows over a run.

Invariant: a reading of a process that has ended is None.  Of the processes that try schemas, which
end with their models, the largest is read, and they are counted.  Growth is the slope of straight
lines through all readings of the second half, not the difference of two of them.  The memory of an
engine process depends on the models that are loaded, which come and go: readings with the same
models have a line of their own, and all lines have one slope.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from soak_parts.serving import SoakServer

MIB = 1 << 20
PARTS = ("server", "engine", "others")  # the API server, the engine, and what tries schemas
KINDS = ("rss", "pss", "files", "threads", "processes")
GROWTH = 0.05  # of the mean, over the second half of the run
FLOORS = {  # growth that is always allowed
    "rss": 4 * MIB, "pss": 4 * MIB, "files": 4, "threads": 4, "processes": 2,
}  # fmt: skip
LEAST_MINUTES = 30.0  # of a run whose growth is judged: caches fill up first

Reading = dict[str, float]


def read_process(pid: int | None) -> Reading | None:
    """Bytes, open files and threads."""
    if pid is None:
        return None
    root = Path(f"/proc/{pid}")
    try:
        text = (root / "smaps_rollup").read_text()
        files = len(list((root / "fd").iterdir()))
        threads = len(list((root / "task").iterdir()))
    except OSError:
        return None
    found = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.M))
    if len(found) < 2:
        return None  # it is ending
    return {"rss": 1024 * int(found["Rss"]), "pss": 1024 * int(found["Pss"]), "files": files,
            "threads": threads}  # fmt: skip


def read_processes(server: SoakServer) -> dict[str, Reading | None]:
    others = [one for one in map(read_process, server.find_others()) if one is not None]
    largest = max(others, key=lambda one: one["rss"], default=None)
    return {
        "server": read_process(server.pid),
        "engine": read_process(server.find_engine()),
        "others": largest and {**largest, "processes": len(others)},
    }


def sum_metric(page: str, name: str) -> float:
    """A metric's sum over all labels."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^\n]*}})? (\S+)$", page, re.M))


def fit_growth(points: Sequence[tuple[float, float, Hashable]]) -> float:
    """How much (time, value, state) rise from the first to the last: least squares, with a level
    for each state.
    """
    states: dict[Hashable, list[tuple[float, float]]] = {}
    for x, y, state in points:
        states.setdefault(state, []).append((x, y))
    spread = product = 0.0
    for own in states.values():
        mean_x = sum(x for x, _ in own) / len(own)
        mean_y = sum(y for _, y in own) / len(own)
        spread += sum((x - mean_x) ** 2 for x, _ in own)
        product += sum((x - mean_x) * (y - mean_y) for x, y in own)
    return product / spread * (points[-1][0] - points[0][0]) if spread else 0.0


def measure_growths(
    samples: Sequence[dict[str, Any]], seconds: float, restarts: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """A row for each process and kind: mean, growth and the growth that is allowed, in the second
    half of the process's life, which began at 0 or at its restart.
    """
    rows = []
    for part in PARTS:
        half = ((restarts or {}).get(part, 0.0) + seconds) / 2
        for kind in KINDS:
            points = [
                (one["time"], one[part][kind], tuple(one["loaded"]) if part == "engine" else ())
                for one in samples
                if one["time"] >= half and one[part] is not None and kind in one[part]
            ]
            if not points:
                continue
            mean = sum(y for _, y, _ in points) / len(points)
            allowed = max(GROWTH * mean, FLOORS[kind])
            rows.append({"part": part, "kind": kind, "readings": len(points), "mean": mean,
                         "growth": fit_growth(points), "allowed": allowed})  # fmt: skip
    return rows
