"""`bench kernels`: tests in rounds of ours, peer, ours, peer, ..., each between two samples of the
machine's limits.

Invariant: what is compared was measured in the same round; a test whose rows are all there already
is passed over; a peer that fails says so and the others go on.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from flyweight.bench.facts import OtherProcesses, Surroundings, measure_size, name_file
from flyweight.bench.figures import PlotColumn, PlotSubject, make_rows
from flyweight.bench.limits import LimitSampler
from flyweight.bench.ours import (
    BenchEngineOptions,
    OwnEngine,
    TimedRun,
    check_depth,
    find_isa,
    find_kv_dtype,
    make_settings,
)
from flyweight.bench.peer import Peer, PeerArgument, PeerError, PeerMethod, PeerSetup
from flyweight.bench.peers import open_peer
from flyweight.bench.rows import OURS, BenchRow, make_key
from flyweight.bench.workloads import Workload, count_needs
from flyweight.describe import SilentListener, find
from flyweight.plan.machine import read_machine

BUSY = "while True: pass"  # a neighbour that takes a core
UNTIMED = -1  # a round of its own, with other tokens
PEER_STEP = 4096  # tokens of prompts a peer computes at once, at most


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A run of `bench kernels`: `busy` processes take a core each meanwhile."""

    model: str
    tests: Sequence[Workload]
    options: BenchEngineOptions = field(default_factory=BenchEngineOptions)
    rounds: int = 5
    peers: Sequence[PeerArgument] = ()
    means: PeerMethod = field(default_factory=PeerMethod)
    busy: int = 0


class RunListener(SilentListener):
    """Receives the progress of a run; every method may do nothing."""

    def round(self, test: str, done: int, total: int) -> None: ...
    def rows(self, rows: Sequence[BenchRow]) -> None: ...


Run = Callable[[Workload, int], TimedRun]


def run(
    requested: KernelRun, done: Sequence[BenchRow] = (), listener: RunListener | None = None
) -> list[BenchRow]:
    """Measures what is not in `done`; rows are reported as soon as a test is finished, and returned
    together.
    """
    listener = listener or RunListener()
    for test in requested.tests:
        check_depth(test, requested.options.block_size)
    missing = find_missing(requested, {row.key for row in done}, listener)
    if not missing:
        return []
    found: list[BenchRow] = []
    with ExitStack() as stack:
        bench = KernelBenchmark(requested, missing, listener, stack)
        for i, test in enumerate(missing):
            measured = bench.measure(test, i, len(missing))
            listener.rows(measured)
            found += measured
    return found


def find_missing(
    requested: KernelRun, known: set[tuple[object, ...]], listener: SilentListener
) -> list[Workload]:
    """Tests that lack a row of ours or of a peer's."""
    if not known:
        return [*requested.tests]
    given = make_settings(requested.model, requested.tests, requested.options)
    path = find(given, listener)
    model = (name_file(path), measure_size(path), given.threads or read_machine().cores)
    options = (find_kv_dtype(given), requested.options.activations, requested.busy)
    engines = [
        (name, find_isa(given)) for name in (OURS, *(peer.label for peer in requested.peers))
    ]
    return [
        test
        for test in requested.tests
        if any(make_key(engine, test.name, model, options) not in known for engine in engines)
    ]


class KernelBenchmark:
    """The engine, its peers and a prober, ready for tests."""

    def __init__(
        self,
        requested: KernelRun,
        tests: Sequence[Workload],
        listener: RunListener,
        stack: ExitStack,
    ) -> None:
        self.requested, self.listener = requested, listener
        self.ours = ours = OwnEngine(requested.model, tests, requested.options, listener)
        self.subject = PlotSubject(
            ours.facts,
            ours.shape,
            requested.options,
            ours.kv_dtype,
            ours.threads,
            Surroundings.here(),
            requested.busy,
        )
        self.prober = LimitSampler(ours.threads, ours.isa, ours.facts.nbytes)
        self.peers = list(self._open(tests, stack))

    def _open(self, tests: Sequence[Workload], stack: ExitStack) -> Iterator[Peer]:
        requested, block = self.requested, self.requested.options.block_size
        length, seqs, blocks = count_needs(tests, block, PEER_STEP)
        tokens = max(blocks * block, length)
        setup = PeerSetup(tokens, seqs, tokens * self.ours.token_bytes)
        means = replace(requested.means, threads=self.ours.threads)
        for named in requested.peers:
            try:
                peer = open_peer(named, str(self.ours.path), setup, means)
            except PeerError as error:
                self.listener.warn(f"{error}; it is left out")
                continue
            stack.callback(peer.close)
            yield peer

    def measure(self, test: Workload, number: int, tests: int) -> list[BenchRow]:
        """All rounds of a test; our row first."""
        self.listener.round(
            test.name, number * self.requested.rounds, tests * self.requested.rounds
        )
        vocab = self.ours.loaded.spec.vocab
        columns = [PlotColumn(OURS, self.subject.around.version, self.ours.isa)]
        columns += [PlotColumn(peer.label, peer.version, self.ours.isa) for peer in self.peers]
        runs: list[Run] = [self.ours.measure]
        runs += [lambda t, r, peer=peer: peer.measure(t, vocab, r) for peer in self.peers]  # type: ignore[misc]
        live = self._warm_up(test, list(zip(columns, runs, strict=True)))
        with start_neighbours(self.requested.busy) as busy:
            for round in range(self.requested.rounds):
                done = number * self.requested.rounds + round
                self.listener.round(test.name, done, tests * self.requested.rounds)
                live = self._run_round(test, round, live, busy)
        for column, peer in zip(columns[1:], self.peers, strict=True):
            column.version = peer.version  # a program tells only once it has run
        return make_rows(self.subject, test, [column for column, _ in live])

    def _warm_up(
        self, test: Workload, pairs: list[tuple[PlotColumn, Run]]
    ) -> list[tuple[PlotColumn, Run]]:
        """Runs each column once, short and untimed: some compile for the sizes they meet first.
        Returns those that still run.
        """
        live = []
        short = replace(test, gen=min(test.gen, 2))
        for column, timed in pairs:
            try:
                timed(short, UNTIMED)
            except PeerError as error:
                self.listener.warn(f"{test.name}: {error}; it is left out")
                continue
            live.append((column, timed))
        return live

    def _run_round(
        self, test: Workload, round: int, pairs: list[tuple[PlotColumn, Run]], busy: Sequence[int]
    ) -> list[tuple[PlotColumn, Run]]:
        """Runs each column once; returns those that still run."""
        live = []
        before = self.prober.sample()
        for column, timed in pairs:
            others = OtherProcesses([*busy, *(pid for peer in self.peers for pid in peer.pids)])
            try:
                column.timed.append(timed(test, round))
            except PeerError as error:
                self.listener.warn(f"{test.name}: {error}; it is left out")
                continue
            column.others.append(others.measure_cores())
            after = self.prober.sample()
            column.around.append(before.average(after))
            before = after
            live.append((column, timed))
        return live


@contextmanager
def start_neighbours(count: int) -> Iterator[Sequence[int]]:
    """So many processes that do nothing but take a core each."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield [process.pid for process in busy]
    finally:
        for process in busy:
            process.kill()
            process.wait()
