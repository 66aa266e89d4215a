"""Counts what the engine and the requests did: plain numbers, cheap enough for every token.

Invariant: counting changes nothing and cannot end a request; nothing here grows with the number of
requests.  Knows no metric names (`metrics` does).  No log line holds a prompt or a key.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any

from flyweight.engine.metrics import EngineMetrics
from flyweight.requests.collector import Collector, VectorCollector
from flyweight.server.engine_client import EngineStream
from flyweight.server.observability.log import ServerLog
from flyweight.server.overload_steps import KINDS
from flyweight.server.pipe import StepEvents, StepReport
from flyweight.types import Request

FINE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.0075)  # a small model's tokens
TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL = (
    *FINE, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TIMES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS = (1.0, *(float(8 << i) for i in range(12)))  # 1, 8, 16, ... 16384
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
HTTP = (0.1, 0.5, 1.0)
HTTP_FINE = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
RESIDENCY = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0,
)  # fmt: skip
SHAPE = ("max_batch_size", "max_input_len", "max_output_len")
OUTCOMES = ("met", "missed", "refused")  # of requests with deadlines
REASONS = ("stop", "length", "abort", "error", "repetition")
FIELDS = [one.name for one in fields(EngineMetrics)]
INTERVAL = 10.0  # seconds between two lines about the same


def series(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ...  up to `most`."""
    found: list[float] = []
    power = 1
    while power <= most:
        found += [float(power * step) for step in (1, 2, 5) if power * step <= most]
        power *= 10
    return tuple(found)


class Histogram:
    """How many values are at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class CounterSummary:
    """A count and a sum."""

    count: int = 0
    sum: float = 0.0

    def observe(self, value: float) -> None:
        self.count += 1
        self.sum += value


class EngineTotals:
    """The engine's metrics as numbers that only grow, although each engine process starts at 0."""

    __slots__ = ("_before", "_newest", "_positions", "_positions_before")

    def __init__(self) -> None:
        self._newest, self._positions = EngineMetrics(), tuple[int, ...]()
        self._before, self._positions_before = (
            Counter[str](),
            list[int](),
        )  # of processes that ended

    def take(self, totals: EngineMetrics, positions: tuple[int, ...] = ()) -> None:
        """The newest totals, and accepted draft tokens by position in the draft."""
        if totals.steps < self._newest.steps:  # another process
            self._before.update(asdict(self._newest))
            self._positions_before = self.positions
        self._newest, self._positions = totals, positions

    def __getitem__(self, name: str) -> int:
        newest: int = getattr(self._newest, name)
        return newest + self._before[name]

    @property
    def draft_speedup(self) -> float | None:
        """See `EngineMetrics`; of all processes."""
        taken = self["decode_us"]
        return self["undrafted_us"] / taken if taken else None

    @property
    def drafting_ended(self) -> bool:
        """Whether a failure ended drafting for all requests of the engine that runs now."""
        return self._newest.drafting_ended > 0

    @property
    def positions(self) -> list[int]:
        both = zip_longest(self._positions, self._positions_before, fillvalue=0)
        return [new + before for new, before in both]


@dataclass(slots=True)
class HttpCounts:
    """HTTP requests by route, method and status; the number of keys is bounded."""

    requests: dict[tuple[str, str, str], int] = field(default_factory=dict)
    taken: dict[str, CounterSummary] = field(default_factory=dict)
    given: dict[str, CounterSummary] = field(default_factory=dict)
    seconds: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    fine: Histogram = field(default_factory=lambda: Histogram(HTTP_FINE))
    active: int = 0

    def note(self, where: tuple[str, str, str], taken: int, given: int, seconds: float) -> None:
        """One request to `where` (route, method, status class), its bytes in and out."""
        route, method, _ = where
        self.requests[where] = self.requests.get(where, 0) + 1
        self.taken.setdefault(route, CounterSummary()).observe(taken)
        self.given.setdefault(route, CounterSummary()).observe(given)
        self.seconds.setdefault((route, method), Histogram(HTTP)).observe(seconds)
        self.fine.observe(seconds)


class ServerCounters:
    """All counters of one model; `longest` is the maximum length of a sequence."""

    def __init__(self, longest: int) -> None:
        tokens = series(longest)
        self.itl, self.tpot = Histogram(ITL), Histogram(ITL)
        self.ttft = Histogram(TTFT)
        self.e2e, self.queue, self.inference = Histogram(TIMES), Histogram(TIMES), Histogram(TIMES)
        self.prefill, self.decode = Histogram(TIMES), Histogram(TIMES)
        self.prompt, self.generation = Histogram(tokens), Histogram(tokens)
        self.longest_generation, self.most = Histogram(tokens), Histogram(tokens)
        self.computed = Histogram(tokens)
        self.step = Histogram(STEP_TOKENS)
        self.choices = Histogram(CHOICES)
        self.lifetime, self.idle = Histogram(RESIDENCY), Histogram(RESIDENCY)
        self.reuse_gap = Histogram(RESIDENCY)
        self.reasons = dict.fromkeys(REASONS, 0)
        self.deadlines = dict.fromkeys(OUTCOMES, 0)
        self.degraded: dict[str, int] = dict.fromkeys(KINDS, 0)  # requests, by overload step
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = 0
        self.offered = self.reasoned = 0  # chats with tools; read for reasoning
        self.token_queries = self.token_hits = 0  # texts whose ids were looked up; found
        self.outside = dict.fromkeys(SHAPE, 0)  # requests outside the compiled shape, by its limits
        self.seats = 0  # sequences, summed over steps
        self.longest = 0  # tokens of a prompt and its answer that have ended
        self.busy, self._busy = 0.0, 0.0
        self._found_here = 0
        self.count_joined: Callable[[], int] = lambda: 0  # requests that joined an identical one
        self.totals = EngineTotals()

    def update_engine(
        self, totals: EngineMetrics, busy: float, positions: tuple[int, ...] = ()
    ) -> None:
        self.totals.take(totals, positions)
        self.busy += busy - self._busy if busy >= self._busy else busy
        self._busy = busy

    @property
    def outside_shape(self) -> int:
        """How often a request exceeded a limit of the compiled shape."""
        return sum(self.outside.values())

    @property
    def coalesced(self) -> int:
        return self.count_joined()

    @property
    def timed_requests(self) -> int:
        """Requests whose deadlines were judged."""
        return sum(self.deadlines.values())

    @property
    def degraded_requests(self) -> int:
        """How often an overload step changed a request."""
        return sum(self.degraded.values())

    def count_found_here(self) -> int:
        """Prompt tokens found in the K/V cache itself.  Hits elsewhere are counted before their
        request's tokens are; a counter must not fall.
        """
        self._found_here = max(self._found_here, self.cached_tokens - self.totals["external_hits"])
        return self._found_here

    def count_token_query(self, found: bool) -> None:
        """Counts a text whose token ids were looked up."""
        self.token_queries += 1
        self.token_hits += found

    def count_eviction(self, lifetime: float, idle: float, gaps: Sequence[float]) -> None:
        """Counts a sampled block that was evicted."""
        self.lifetime.observe(lifetime)
        self.idle.observe(idle)
        for gap in gaps:
            self.reuse_gap.observe(gap)


class StepObserver:
    """Counts steps and requests; `streams` are the running requests, by id, and `facts` those of
    the engine.
    """

    def __init__(
        self,
        counts: ServerCounters,
        streams: Callable[[], Mapping[str, EngineStream]],
        log: ServerLog,
        clock: Callable[[], float] = time.monotonic,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.counts, self.streams, self.log, self.clock = counts, streams, log, clock
        self.facts = facts
        self._last_log = 0.0  # when preemptions were logged last
        self._preempted = 0  # preemptions that were logged

    def observe_step(self, message: StepReport) -> None:
        """Counts a step, before its events are passed on."""
        counts, gauges, streams = self.counts, message.gauges, self.streams()
        counts.update_engine(gauges.totals, gauges.busy, gauges.accepted)
        for stay in message.stays:
            counts.count_eviction(*stay)
        if gauges.tokens:
            counts.step.observe(gauges.tokens)
            counts.seats += gauges.running
        now = self.clock()
        at = message.at or now  # the time of arrival would measure this process
        for news in message.news:
            made = len(news.tokens)
            stream = streams.get(news.id) if made else None
            if stream is None or news.index in stream.stopped:
                continue
            if _is_counted(stream.collector.request):
                counts.generation_tokens += made
            seen = stream.seen
            last = seen.get(news.index)
            seen[news.index] = at
            if last is not None:
                counts.itl.observe(at - last)
            elif len(seen) == 1:
                self._observe_first(stream, news)
                replicas = int(self.facts().get("replicas", 1))
                self._compare_shape(max_batch_size=-(-gauges.running // replicas))
        self._log_preemptions(now)

    def observe_end(self, stream: EngineStream) -> None:
        """Counts a request that has ended or was aborted."""
        collector = stream.collector
        reasons = self.counts.reasons
        if isinstance(collector, VectorCollector):
            self._observe_vector(stream, collector)
            return
        if not isinstance(collector, Collector):
            return
        request, counts = collector.request, self.counts
        lengths = [len(choice.tokens) for choice in collector.choices]
        for choice, length in zip(collector.choices, lengths, strict=True):
            reasons[_find_reason(stream, choice.finish)] += 1
            counts.generation.observe(length)
            if length > 1:
                counts.tpot.observe((choice.last - choice.first) / (length - 1))
        counts.longest_generation.observe(max(lengths))
        counts.prompt.observe(len(request.tokens))
        counts.choices.observe(len(lengths))
        counts.most.observe(request.max_tokens if _is_counted(request) else 0)
        counts.computed.observe(len(request.tokens) - collector.cached)
        if stream.seen or any(lengths):
            counts.longest = max(counts.longest, len(request.tokens) + max(lengths))
            self._compare_shape(max_input_len=len(request.tokens), max_output_len=max(lengths))
            self._observe_times(collector)

    def _observe_vector(self, stream: EngineStream, collector: VectorCollector) -> None:
        """Counts a request for a vector."""
        event, counts = collector.event, self.counts
        finish = None if event is None else "error" if event.vector is None else "stop"
        counts.reasons[_find_reason(stream, finish)] += 1
        if event is not None:
            self._count_prompt(len(collector.tokens), event.cached)
            counts.prompt.observe(len(collector.tokens))
            counts.longest = max(counts.longest, len(collector.tokens))
            self._compare_shape(max_input_len=len(collector.tokens))
            counts.computed.observe(len(collector.tokens) - event.cached)

    def _observe_first(self, stream: EngineStream, news: StepEvents) -> None:
        """Counts the first token of a request."""
        if news.timings is not None:
            arrival, _, first, *_ = news.timings
            self.counts.ttft.observe(first - arrival)
        self._count_prompt(len(stream.collector.request.tokens), news.cached)

    def _compare_shape(self, **found: int) -> None:
        """Counts the limits of the compiled shape, if there is one, that are below `found`."""
        for name, most in (self.facts().get("compiled") or {}).items():
            self.counts.outside[name] += found.get(name, 0) > most

    def _count_prompt(self, tokens: int, cached: int) -> None:
        self.counts.prompt_tokens += tokens
        self.counts.cached_tokens += cached

    def _observe_times(self, collector: Collector) -> None:
        m, counts = collector.metrics(), self.counts
        counts.e2e.observe(m.total)
        counts.queue.observe(m.queued)
        counts.inference.observe(m.total - m.queued)
        counts.prefill.observe(m.ttft - m.queued)
        counts.decode.observe(m.total - m.ttft)

    def _log_preemptions(self, now: float) -> None:
        total = self.counts.totals["preempted"]
        if total == self._preempted or now < self._last_log + INTERVAL:
            return
        self.log.event(
            "preempted", sequences=total - self._preempted, total=total,
            reason="the K/V cache is full; they are computed again later",
            hint="increase --memory-limit or reduce --max-num-seqs",
        )  # fmt: skip
        self._last_log, self._preempted = now, total


def _is_counted(request: Request) -> bool:
    """Whether generated tokens count: not the one of a prompt that is only scored."""
    return request.params.max_tokens != 0


def _find_reason(stream: EngineStream, finish: str | None) -> str:
    if finish in REASONS:
        return finish
    return "error" if stream.error is not None else "abort"
