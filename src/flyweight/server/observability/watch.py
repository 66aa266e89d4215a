"""Sees every step and the end of every request, counts them, and says what an operator should know.

Invariant: a step costs a look at each of its events and nothing for their text; nothing here can
end a request.  No line of the log holds a prompt, a key or a line break of somebody else's.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from flyweight.requests.collector import Collector, VectorCollector
from flyweight.server.engine_client.client import EngineStream
from flyweight.server.observability.counters import REASONS, ServerCounters
from flyweight.server.pipe import StepEvents, StepReport
from flyweight.types import Request

INTERVAL = 10.0  # seconds between two lines about the same


class LogsEvents(Protocol):
    """Where lines go; see `log.Log`."""

    def event(self, name: str, /, **facts: object) -> None: ...


class StepObserver:
    """One server's eyes; `streams` are the requests under way, by id."""

    def __init__(
        self,
        counts: ServerCounters,
        streams: Callable[[], Mapping[str, EngineStream]],
        log: LogsEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts, self.streams, self.log, self.clock = counts, streams, log, clock
        self._said = 0.0  # when preemptions were told of last
        self._preempted = 0  # that were told of

    def observe_step(self, message: StepReport) -> None:
        """A step, before its news are handed on."""
        counts, gauges, streams = self.counts, message.gauges, self.streams()
        counts.update_engine(gauges.totals, gauges.busy, gauges.accepted)
        for stay in message.stays:
            counts.count_eviction(*stay)
        if gauges.tokens:
            counts.step.observe(gauges.tokens)
            counts.seats += gauges.running
        now = self.clock()
        at = message.at or now  # when it was heard of says how busy the front end is
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
        self._log_preemptions(now)

    def observe_end(self, stream: EngineStream) -> None:
        """A request that nobody waits for any more, whatever became of it."""
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
            self._observe_times(collector)

    def _observe_vector(self, stream: EngineStream, collector: VectorCollector) -> None:
        """A prompt whose vector was asked for."""
        event, counts = collector.event, self.counts
        finish = None if event is None else "error" if event.vector is None else "stop"
        counts.reasons[_find_reason(stream, finish)] += 1
        if event is not None:
            self._count_prompt(len(collector.tokens), event.cached)
            counts.prompt.observe(len(collector.tokens))
            counts.longest = max(counts.longest, len(collector.tokens))
            counts.computed.observe(len(collector.tokens) - event.cached)

    def _observe_first(self, stream: EngineStream, news: StepEvents) -> None:
        """The first token of a request."""
        if news.timings is not None:
            arrival, _, first, _ = news.timings
            self.counts.ttft.observe(first - arrival)
        self._count_prompt(len(stream.collector.request.tokens), news.cached)

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
        if total == self._preempted or now < self._said + INTERVAL:
            return
        self.log.event(
            "preempted", sequences=total - self._preempted, total=total,
            reason="the K/V cache is full; they are computed again later",
            hint="increase --memory-limit or reduce --max-num-seqs",
        )  # fmt: skip
        self._said, self._preempted = now, total


def _is_counted(request: Request) -> bool:
    """Whether the tokens that are drawn are: not the one of a prompt that is only scored."""
    return request.params.max_tokens != 0


def _find_reason(stream: EngineStream, finish: str | None) -> str:
    if finish in REASONS:
        return finish
    return "error" if stream.error is not None else "abort"
