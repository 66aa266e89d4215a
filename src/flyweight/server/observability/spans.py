"""The stages of an HTTP request, and what a trace says about it.

Invariant: stages follow one another without gaps, so their durations add up to the request's.
Nothing here holds a prompt, an answer or a key.  Knows no OpenTelemetry (`tracing` does).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flyweight.requests.collector import Collector, VectorCollector

LOAD = "load"  # of a request that waited for its model
STAGES = ("tokenize", "queue", "prefill", "decode", "detokenize")
OF_VECTORS = ("tokenize", "queue", "prefill", "detokenize")
CHATS = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"})
PROVIDER = "flyweight"
NS = 1_000_000_000
Attributes = dict[str, str | int | float | list[str]]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """An HTTP request that has ended.  Times are monotonic seconds, 0 where it did not get so far:
    its prompts were `prepared`, and it was computed for the first time (`started`).  `whole`: its
    reply was sent to the end.  `context` are its headers `traceparent` and `tracestate`.  It waited
    `loading` seconds for models to be loaded, before its prompts were read.
    """

    method: str
    route: str
    status: int
    whole: bool
    began: float
    prepared: float
    started: float
    ended: float
    model: str = ""
    id: str = ""
    reply: str = ""
    collectors: Sequence[Collector | VectorCollector] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    loading: float = 0.0


class Stage(NamedTuple):
    """Nanoseconds since 1970; a stage begins when the one before it ends."""

    name: str
    began: int
    ended: int


class ComputedTimes(NamedTuple):
    """Monotonic seconds, over all prompts of a request: when the first was computed for the first
    time, the first token of any and the last of all; 0 before that.
    """

    scheduled: float
    first: float
    last: float


def measure_offset() -> int:
    """Nanoseconds from the monotonic clock's zero to 1970."""
    return time.time_ns() - time.monotonic_ns()


def divide(trace: RequestTrace, offset: int) -> list[Stage]:
    """The request itself, then the stages it reached; the last one lasts until its end.  A request
    that ran no prompt has none.  The wait for a model comes first, and is no part of tokenizing.
    """
    began, ended = to_ns(trace.began, offset), to_ns(trace.ended, offset)
    stages = [Stage("llm_request", began, ended)]
    if not trace.prepared:
        return stages
    times = find_times(trace.collectors)
    marks = [trace.prepared, times.scheduled or trace.started, times.first]
    names: Sequence[str] = OF_VECTORS
    if not all(isinstance(one, VectorCollector) for one in trace.collectors):
        marks.append(times.last)
        names = STAGES
    if trace.loading:
        marks.insert(0, trace.began + trace.loading)
        names = (LOAD, *names)
    reached = marks.index(0.0) if 0.0 in marks else len(marks)
    for name, mark in zip(names, marks[:reached], strict=False):
        until = min(max(to_ns(mark, offset), began), ended)
        stages.append(Stage(name, began, until))
        began = until
    stages.append(Stage(names[reached], began, ended))
    return stages


def to_ns(seconds: float, offset: int) -> int:
    return round(seconds * NS) + offset


def find_times(collectors: Sequence[Collector | VectorCollector]) -> ComputedTimes:
    """Of a vector, the first and the last token are the vector."""
    found = [times for one in collectors if (times := _find_own_times(one)) is not None]
    if not found:
        return ComputedTimes(0.0, 0.0, 0.0)
    vectors = all(isinstance(one, VectorCollector) for one in collectors)
    firsts = [times.first for times in found]
    return ComputedTimes(
        min(times.scheduled for times in found),
        max(firsts) if vectors else min(firsts),
        max(times.last for times in found),
    )


def _find_own_times(collector: Collector | VectorCollector) -> ComputedTimes | None:
    """Those of one prompt; None before its first token."""
    if isinstance(collector, VectorCollector):
        known = collector.event.timings if collector.event is not None else None
        done = collector.done
        return None if known is None else ComputedTimes(known.scheduled, done, done)
    metrics, arrival = collector.metrics(), collector.request.arrival
    if not metrics.total:  # one that joined another has its first token at once
        return None
    return ComputedTimes(arrival + metrics.queued, arrival + metrics.ttft, arrival + metrics.total)


def describe_request(trace: RequestTrace, stages: Sequence[Stage]) -> Attributes:
    """Attributes by OpenTelemetry's conventions for HTTP and generative AI, and by vLLM's."""
    found: Attributes = {
        "http.request.method": trace.method,
        "http.route": trace.route,
        "http.response.status_code": trace.status,
    }
    if not trace.whole:
        found["error.type"] = "client_disconnected"
    elif trace.status >= 500:
        found["error.type"] = str(trace.status)
    if trace.id:
        found["gen_ai.request.id"] = trace.id
    if trace.reply:
        found["gen_ai.response.id"] = trace.reply
    if trace.collectors:
        found |= _describe_model(trace) | _describe_options(trace.collectors[0])
        found |= _count_tokens(trace.collectors) | _measure_latencies(stages)
    return found


def _describe_model(trace: RequestTrace) -> Attributes:
    first = trace.collectors[0]
    chat = "chat" if trace.route in CHATS else "text_completion"
    model = first.request.adapter or trace.model
    return {
        "gen_ai.operation.name": "embeddings" if isinstance(first, VectorCollector) else chat,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }


def _describe_options(collector: Collector | VectorCollector) -> Attributes:
    """The sampling options that the conventions have a name for."""
    if isinstance(collector, VectorCollector):
        return {}
    params = collector.requested
    return {
        "gen_ai.request.max_tokens": collector.request.max_tokens,
        "gen_ai.request.n": params.n,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
    }


def _count_tokens(collectors: Sequence[Collector | VectorCollector]) -> Attributes:
    """OpenTelemetry's names, then vLLM's."""
    texts = [one for one in collectors if isinstance(one, Collector)]
    prompt = sum(len(one.request.tokens) for one in collectors)
    made = sum(one.produced for one in texts)
    reasons = [choice.finish for one in texts for choice in one.choices if choice.finish]
    return {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": made,
        "gen_ai.usage.cache_read.input_tokens": sum(one.cached for one in collectors),
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": made,
        "gen_ai.usage.num_sequences": sum(len(one.choices) for one in texts) or len(collectors),
        **({"gen_ai.response.finish_reasons": reasons} if reasons else {}),
    }


def _measure_latencies(stages: Sequence[Stage]) -> Attributes:
    """vLLM's latencies (s), of stages that have ended with what they are for."""
    took = {stage.name: (stage.ended - stage.began) / NS for stage in stages}
    found: Attributes = {"gen_ai.latency.e2e": took["llm_request"]}
    if "prefill" in took:
        found["gen_ai.latency.time_in_queue"] = took["queue"]
    if "detokenize" not in took:
        return found
    first = next(stage.ended for stage in stages if stage.name == "prefill")
    found["gen_ai.latency.time_to_first_token"] = (first - stages[0].began) / NS
    found["gen_ai.latency.time_in_model_prefill"] = took["prefill"]
    found["gen_ai.latency.time_in_model_decode"] = took.get("decode", 0.0)
    inference = took["prefill"] + took.get("decode", 0.0)
    found["gen_ai.latency.time_in_model_inference"] = inference
    return found
