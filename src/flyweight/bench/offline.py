"""`bench latency` and `bench throughput`: whole requests through `LLM.generate`, in vLLM's
words.

Invariant: prompts are random tokens, never found in the prefix cache; answers have the requested
length; what was computed is written down step by step, and set against limits sampled before
and after.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from flyweight.bench.facts import OtherProcesses
from flyweight.bench.figures import compute_deviation
from flyweight.bench.kernels import RunListener
from flyweight.bench.limits import LimitSample, LimitSampler
from flyweight.bench.ours import RunNotes, find_isa, record_steps
from flyweight.bench.peer import Peer, PeerArgument, PeerError, PeerMethod, PeerSetup
from flyweight.bench.peers import open_peer
from flyweight.bench.rows import Spread
from flyweight.bench.workloads import make_ids
from flyweight.llm import LLM
from flyweight.plan.machine import read_machine
from flyweight.plan.roofline import Shape, StepShape, make_shape, sum_work
from flyweight.types import SamplingParams

PERCENTS = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class OfflineRequests:
    """`count` requests of so many tokens in and out; at most `seqs` at once.  Lengths of answers
    vary by the share `spread`, the same in each round.
    """

    count: int
    input_len: int
    output_len: int
    seqs: int
    spread: float = 0.0

    @property
    def answers(self) -> list[int]:
        """The length of each answer."""
        rng, share = random.Random(self.count), self.spread
        low, high = int(self.output_len * (1 - share)), int(self.output_len * (1 + share))
        return [max(1, rng.randint(low, high)) for _ in range(self.count)]

    @property
    def tokens(self) -> int:
        return self.count * self.input_len + sum(self.answers)

    def make_prompts(self, vocab: int, round: int) -> list[list[int]]:
        seed = (round + 2) * (1 << 20)
        return [make_ids(vocab, self.input_len, seed + i) for i in range(self.count)]


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """What serving them once took: seconds, achieved bytes and operations a second (in 1e9), the
    share of the limits, and the cores others used.
    """

    seconds: float
    gbps: float
    gops: float
    share: float
    share_tile: float | None
    other_cores: float


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """A peer's seconds for the same requests, and how much faster ours were."""

    engine: str
    version: str
    seconds: tuple[float, ...]
    ratio: Spread


class OfflineRun:
    """An `LLM` with capacity for the requests, a prober of limits, and peers."""

    def __init__(
        self, model: str, requests: OfflineRequests, listener: RunListener, **settings: Any
    ) -> None:
        notes = RunNotes(listener)
        length = requests.input_len + max(requests.answers)
        self.requests, self.listener = requests, listener
        self.llm = LLM(
            model,
            notify=notes,
            max_model_len=length,
            max_num_seqs=requests.seqs,
            max_num_batched_tokens=max(512, requests.seqs),
            **settings,
        )
        self.llm.loaded.moving.settle()
        found, given = notes.found, self.llm.settings
        assert found is not None, "loading reports the model that it found"
        self.path, self.threads = str(found.checkpoint.path), given.threads or read_machine().cores
        stored = self.llm.loaded.memory.sizing.kv_dtype
        self.shape: Shape = make_shape(
            found.checkpoint, found.plan, found.spec, given.activations, stored
        )
        self.weights = weights = sum(matrix.nbytes * n for matrix, n in self.shape.matrices)
        self.prober = LimitSampler(self.threads, find_isa(given), weights)
        self.peers: list[Peer] = []

    @property
    def vocab(self) -> int:
        return self.llm.loaded.spec.vocab

    def run_once(self, round: int, *, shown: bool = False) -> OfflineResult:
        """All requests, once; `shown` with a bar of how many are answered."""
        prompts = self.requests.make_prompts(self.vocab, round)
        params = [
            SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
            for answer in self.requests.answers
        ]
        engine, size = self.llm.loaded.engine, self.llm.settings.block_size
        before, others = self.prober.sample(), self._watch_others()
        with record_steps(engine) as recorder:
            start = time.perf_counter()
            self.llm.generate(prompts, params, use_tqdm=shown)
            seconds = time.perf_counter() - start
        taken = others.measure_cores()
        return make_result(
            self.shape,
            recorder.make_shapes(size),
            seconds,
            before.average(self.prober.sample()),
            taken,
        )

    @contextmanager
    def open_peers(self, named: Sequence[PeerArgument], means: PeerMethod) -> Iterator[None]:
        """Peers are there until the block ends."""
        each = self.requests.input_len + self.requests.output_len + 2
        tokens = each * min(self.requests.count, self.requests.seqs)
        layers = self.llm.loaded.spec.layers
        kv = tokens * sum(self.shape.kv_type.count_bytes(layer.kv) for layer in layers)
        setup = PeerSetup(tokens, min(self.requests.count, self.requests.seqs), kv)
        try:
            for name in named:
                try:
                    means = replace(means, threads=self.threads)
                    self.peers.append(open_peer(name, self.path, setup, means))
                except PeerError as error:
                    self.listener.warn(f"{error}; it is left out")
            yield
        finally:
            for peer in self.peers:
                peer.close()
            self.peers.clear()

    def measure_peer(self, peer: Peer, round: int) -> float:
        """A peer's seconds for the same requests."""
        return peer.serve(self.requests.make_prompts(self.vocab, round), self.requests.output_len)

    def _watch_others(self) -> OtherProcesses:
        return OtherProcesses([pid for peer in self.peers for pid in peer.pids])


def make_result(
    requested: Shape, steps: Sequence[StepShape], seconds: float, sample: LimitSample, others: float
) -> OfflineResult:
    done = sum_work(requested, steps, sample.vector)
    tile = sum_work(requested, steps, sample.tile).seconds / seconds if sample.tile else None
    return OfflineResult(
        seconds,
        done.nbytes / seconds / 1e9,
        done.operations / seconds / 1e9,
        done.seconds / seconds,
        tile,
        others,
    )


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """Rounds of the same requests, ours and peers', with so many bytes of weights."""

    requests: OfflineRequests
    ours: tuple[OfflineResult, ...]
    peers: tuple[PeerComparison, ...]
    weights: int = 0

    @property
    def seconds(self) -> list[float]:
        return [one.seconds for one in self.ours]

    @property
    def middle(self) -> OfflineResult:
        """The round of the median time."""
        return sorted(self.ours, key=lambda one: one.seconds)[len(self.ours) // 2]

    def compute_percentiles(self) -> dict[int, float]:
        """Between neighbours in order, as NumPy's."""
        times = sorted(self.seconds)
        found = {}
        for percent in PERCENTS:
            at = percent / 100 * (len(times) - 1)
            low = int(at)
            high = min(low + 1, len(times) - 1)
            found[percent] = times[low] + (at - low) * (times[high] - times[low])
        return found

    def compute_cost(self, hourly: float) -> float:
        """Dollars of a million output tokens, on a machine of `hourly` dollars an hour."""
        average = sum(self.seconds) / len(self.seconds)
        return 1e6 * hourly / 3600 * average / sum(self.requests.answers)

    def to_document(self, hourly: float | None = None) -> dict[str, Any]:
        """vLLM's keys of both commands, and ours; with a price, the cost of tokens too."""
        seconds, requested = self.seconds, self.requests
        average = sum(seconds) / len(seconds)
        cost = (
            {} if hourly is None else {"cost_per_million_output_tokens": self.compute_cost(hourly)}
        )
        return {
            "avg_latency": average,
            "stddev_latency": compute_deviation(seconds),
            "latencies": seconds,
            "percentiles": {str(k): v for k, v in self.compute_percentiles().items()},
            "elapsed_time": average,
            "num_requests": requested.count,
            "total_num_tokens": requested.tokens,
            "requests_per_second": requested.count / average,
            "tokens_per_second": requested.tokens / average,
            "rounds": [asdict(one) for one in self.ours],
            "vs": [asdict(one) for one in self.peers],
            **cost,
        }


def measure(serving: OfflineRun, rounds: int, warm: int) -> OfflineReport:
    """Rounds in turn, after some that are not counted."""
    listener, total = serving.listener, warm + rounds
    ours: list[OfflineResult] = []
    times: dict[str, list[float]] = {peer.label: [] for peer in serving.peers}
    for turn in range(total):
        if total > 1:
            listener.round("warm-up" if turn < warm else f"round {turn - warm + 1}", turn, total)
        served_once = serving.run_once(turn, shown=total == 1)
        if turn >= warm:
            ours.append(served_once)
        for peer in serving.peers:
            if peer.label not in times:
                continue
            try:
                seconds = serving.measure_peer(peer, turn)
            except PeerError as error:
                listener.warn(f"{error}; it is left out")
                del times[peer.label]
                continue
            if turn >= warm:
                times[peer.label].append(seconds)
    mine = [one.seconds for one in ours]
    compared = tuple(
        PeerComparison(
            peer.label,
            peer.version,
            tuple(times[peer.label]),
            Spread.of([a / b for a, b in zip(times[peer.label], mine, strict=True)]),
        )
        for peer in serving.peers
        if peer.label in times
    )
    return OfflineReport(serving.requests, tuple(ours), compared, serving.weights)
