"""Deadlines of requests: what is predicted when one begins, and whether it was kept at the end.

Invariant: a deadline changes when a request runs, never its answer.  Only a strict one is refused,
and only where a prediction is known and fresh.  Times are counted from the arrival of the HTTP
request.  Knows no API.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from flyweight.requests.collector import Collector
from flyweight.requests.prompts import PreparedPrompt
from flyweight.server.admission.queue import LONGEST_WAIT
from flyweight.server.engine_client import EngineStream
from flyweight.server.latency import RequestDemand, measure_backlog
from flyweight.server.request_model import count_sequences
from flyweight.server.served_model import ServedModel
from flyweight.server.transport.errors import HttpError

NAMES = {"ttft_ms": "the first token", "e2el_ms": "the last token"}


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds to the first token and to the last, infinity where there is none; a `strict` request
    is refused if it is predicted to miss one.
    """

    ttft: float = inf
    e2el: float = inf
    strict: bool = False


class TimedRequest:
    """The prompts of an HTTP request that `arrived` then, with their predicted times."""

    def __init__(
        self,
        model: ServedModel,
        prompts: Sequence[PreparedPrompt],
        arrived: float,
        deadlines: Deadlines | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.arrived, self.deadlines, self.clock = model, arrived, deadlines, clock
        self.began = clock()
        self.forecast = model.latency.forecast(
            measure_backlog(model.client), measure_demand(model, prompts)
        )

    @property
    def prediction(self) -> dict[str, float]:
        """Milliseconds from the arrival, by name; empty where none was requested or is known."""
        found = self.forecast
        if self.deadlines is None or found is None or not self.model.latency.known:
            return {}
        gone = self.began - self.arrived
        return {"ttft_ms": to_ms(gone + found.ttft), "e2el_ms": to_ms(gone + found.e2el)}

    def check(self) -> None:
        """Raises `HttpError` where a strict deadline is predicted to be missed."""
        found, wanted, predicted = self.forecast, self.deadlines, self.prediction
        if found is None or wanted is None or not wanted.strict or not predicted:
            return
        if not self.model.latency.fresh:
            return
        alone = {"ttft_ms": found.alone_ttft, "e2el_ms": found.alone_e2el}
        for name, limit in (("ttft_ms", wanted.ttft), ("e2el_ms", wanted.e2el)):
            late = predicted[name] - to_ms(limit)
            if late <= 0:
                continue
            self.model.counts.deadlines["refused"] += 1
            seconds = max(1, min(LONGEST_WAIT, math.ceil(late / 1000)))
            raise HttpError(
                429,
                f"slo.{name} = {to_ms(limit):.15g} would be missed: {NAMES[name]} is predicted "
                f"after {predicted[name]:.15g} ms, and without other requests after "
                f"{to_ms(alone[name]):.15g} ms",
                f"slo.{name}",
                code="deadline_unreachable",
                headers={"retry-after": str(seconds)},
            )

    def schedule(self, prompts: Sequence[PreparedPrompt]) -> list[PreparedPrompt]:
        """The prompts with the time at which they must start to meet the deadlines."""
        start = self.find_start()
        return [replace(one, lane=replace(one.lane, start_by=start)) for one in prompts]

    def find_start(self) -> float:
        """When the first step must begin; as late as the deadline itself while no cost is known."""
        wanted, found = self.deadlines, self.forecast
        if wanted is None:
            return inf
        prefill = decode = 0.0
        if found is not None and self.model.latency.known:
            prefill, decode = found.prefill, found.decode
        return self.arrived + min(wanted.ttft - prefill, wanted.e2el - prefill - decode)

    # --- the end ---

    def end(self, streams: Sequence[EngineStream]) -> None:
        """Learns from prompts that have ended, and counts whether the deadlines were kept."""
        outcomes = set[str]()
        for stream in streams:
            collector = stream.collector
            if isinstance(collector, Collector):
                outcomes |= self._judge(stream, collector)
                self._learn(stream, collector)
        if "missed" in outcomes:
            self.model.counts.deadlines["missed"] += 1
        elif outcomes == {"met"}:  # by all prompts
            self.model.counts.deadlines["met"] += 1

    def _judge(self, stream: EngineStream, collector: Collector) -> set[str]:
        """The outcome of a prompt, if the request has deadlines."""
        if self.deadlines is None:
            return set()
        failed = stream.error is not None or any(one.error for one in collector.choices)
        gone = inf if failed else self.clock() - self.arrived
        return {judge(self.deadlines, *measure_ends(collector, self.arrived), gone)}

    def _learn(self, stream: EngineStream, collector: Collector) -> None:
        """From a request that was computed for itself, to its end."""
        request = collector.request
        usual = request.beam is None and request.params.max_tokens != 0
        ended = all(one.finish in ("stop", "length") for one in collector.choices)
        if not (usual and ended) or stream.leader is not None or stream.error is not None:
            return
        lengths = [len(choice.tokens) for choice in collector.choices]
        first, last = measure_ends(collector, self.began)
        latency = self.model.latency
        latency.record_request(self.forecast, first, last - first, max(lengths))
        for choice, length in zip(collector.choices, lengths, strict=True):
            latency.record_answer(length, stopped=choice.finish == "stop")


def measure_demand(model: ServedModel, prompts: Sequence[PreparedPrompt]) -> RequestDemand:
    """What the prompts add to an engine's work."""
    longest = max(len(one.tokens) for one in prompts)
    given = [(one.beam or one.params).max_tokens for one in prompts]
    room = model.max_model_len - longest
    most = max(room if one is None else min(room, one) for one in given)
    tokens = sum(len(one.tokens) for one in prompts)
    return RequestDemand(tokens, sum(count_sequences(one) for one in prompts), most)


def measure_ends(collector: Collector, since: float) -> tuple[float, float]:
    """Seconds to the first token and to the end; infinity where it has not come."""
    found = collector.metrics()
    if not found.total:
        return inf, inf
    offset = collector.request.arrival - since
    return offset + found.ttft, offset + found.total if collector.finished else inf


def judge(deadlines: Deadlines, first: float, last: float, gone: float) -> str:
    """met, missed, or "" where a request ended before that was known; `gone` seconds have passed
    since it arrived, infinity if it failed.
    """
    pairs = ((deadlines.ttft, first), (deadlines.e2el, last))
    wanted = [(limit, came) for limit, came in pairs if limit < inf]
    if gone == inf or any(min(came, gone) > limit for limit, came in wanted):
        return "missed"
    return "met" if wanted and all(came <= limit for limit, came in wanted) else ""


def to_ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
