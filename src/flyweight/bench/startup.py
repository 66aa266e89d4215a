"""`bench startup`: a process of its own, from its first instruction to its first token.

Invariant: the first start finds no cache of ours (an empty folder stands in for it), the later ones
what that start has left; the file's own pages stay in the page cache.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flyweight.bench.peer import PeerArgument, PeerError, PeerMethod, PeerSetup
from flyweight.bench.peers import open_peer
from flyweight.bench.rows import Spread
from flyweight.config import extend_environment
from flyweight.errors import ConfigError
from flyweight.validation.untrusted import one_line

PROMPT = "Once"
CACHE = "FLYWEIGHT_CACHE"  # where a cache of packed weights is looked for


@dataclass(frozen=True, slots=True)
class StartupRun:
    """Seconds to the first token and to the process's end, and the most memory it held."""

    first: float
    whole: float
    peak: int


@dataclass(frozen=True, slots=True)
class StartupRuns:
    """The first start, the later ones, and what peers took to a first token."""

    cold: StartupRun
    warm: tuple[StartupRun, ...]
    peers: dict[str, tuple[float, ...]]

    @property
    def middle(self) -> Spread:
        return Spread.of([one.first for one in self.warm])

    def compute_ratio(self, label: str) -> Spread:
        pairs = zip(self.peers[label], self.warm, strict=True)
        return Spread.of([theirs / ours.first for theirs, ours in pairs])

    def to_document(self) -> dict[str, Any]:
        ratios = {label: asdict(self.compute_ratio(label)) for label in self.peers}
        return {**asdict(self), "first_token": asdict(self.middle), "ratios": ratios}


StartCallback = Callable[[str, int, int], None]


def measure_startup(
    model: str,
    options: Sequence[str],
    rounds: int,
    peers: Sequence[PeerArgument],
    means: PeerMethod,
    report_start: StartCallback = lambda what, done, total: None,
    warn: Callable[[str], None] = lambda message: None,
) -> StartupRuns:
    """One cold start and `rounds` later ones, peers in turn; one that fails is left out."""
    warm: list[StartupRun] = []
    theirs: dict[str, list[float]] = {peer.label: [] for peer in peers}
    with tempfile.TemporaryDirectory(prefix="flyweight-bench-") as cache:
        report_start("first start", 0, rounds + 1)
        cold = time_start(model, options, Path(cache))
        for round in range(rounds):
            report_start(f"start {round + 1}", round + 1, rounds + 1)
            warm.append(time_start(model, options, Path(cache)))
            for peer in peers:
                if peer.label not in theirs:
                    continue
                try:
                    theirs[peer.label].append(time_first_token(peer, model, means))
                except PeerError as error:
                    warn(f"{error}; it is left out")
                    del theirs[peer.label]
    return StartupRuns(cold, tuple(warm), {label: tuple(times) for label, times in theirs.items()})


def time_start(model: str, options: Sequence[str], cache: Path) -> StartupRun:
    """`flyweight run MODEL Once -n 1`."""
    words = ["run", model, PROMPT, "-n", "1", "--temperature", "0", "--ignore-eos", *options]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "flyweight.cli.main", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=extend_environment({CACHE: str(cache)}),
    )
    assert process.stdout is not None and process.stderr is not None
    os.read(process.stdout.fileno(), 1)  # the first token's text, or the end
    first = time.perf_counter() - began
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    whole = time.perf_counter() - began
    process.stdout.close()
    process.stderr.close()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise ConfigError(f"flyweight run says {one_line(lines[-1], 200)}")
    return StartupRun(first, whole, usage.ru_maxrss * 1024)


def time_first_token(peer: PeerArgument, model: str, means: PeerMethod) -> float:
    """Seconds from a peer's start to the first token of one prompt."""
    began = time.perf_counter()
    there = open_peer(peer, model, PeerSetup(256, 1, 1 << 28), means)
    try:
        there.serve([[1, 2, 3, 4]], 1)
        return time.perf_counter() - began
    finally:
        there.close()
