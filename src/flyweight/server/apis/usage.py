"""What an answer cost: tokens, times, and what the prefix cache saved.

Invariant: all numbers are those of the request itself.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from flyweight.outputs import AttemptReport
from flyweight.requests.collector import Collector, TextPiece, VectorCollector
from flyweight.requests.explaining import explain_cache
from flyweight.server.observability.costs import describe_cost
from flyweight.server.request_model import RequestModel
from flyweight.types import StepUse


def count_usage(collectors: Sequence[Collector | VectorCollector]) -> dict[str, Any]:
    """OpenAI's `usage`, over all prompts of an HTTP request."""
    prompt = sum(len(c.request.tokens) for c in collectors)
    made = sum(c.produced for c in collectors if isinstance(c, Collector))
    return _make_usage(prompt, made, sum(c.cached for c in collectors))


def report_attempts(report: AttemptReport | None) -> dict[str, Any]:
    """What a choice reports of the check of its text, where there was one."""
    return {} if report is None else {"structured_output": asdict(report)}


class RunningUsage:
    """The usage of a stream so far; a piece costs the same however many prompts there are."""

    def __init__(self, collectors: Sequence[Collector]) -> None:
        self.collectors = collectors
        self.prompt = sum(len(c.request.tokens) for c in collectors)
        self.made = self.cached = 0
        self.begun: set[int] = set()

    def note(self, prompt: int, piece: TextPiece) -> None:
        self.made += len(piece.tokens)
        if prompt not in self.begun:
            self.begun.add(prompt)
            self.cached += self.collectors[prompt].cached

    def report(self, less: int = 0) -> dict[str, Any]:
        """`less`: noted tokens that are reported later."""
        return _make_usage(self.prompt, self.made - less, self.cached)


def _make_usage(prompt: int, made: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def measure_timings(*collectors: Collector) -> dict[str, float | None]:
    """vLLM's `metrics` in milliseconds, and the prefill time.  Of several prompts: up to the first
    token of any, with the queue time before it, then up to the last token of all.  The speed-up by
    drafts, where there were some, is the first prompt's.
    """
    arrival, queued, first, last = find_times(collectors)
    seconds, gaps = _sum_gaps(collectors)
    decode = last - first
    speedup = next((s for c in collectors if (s := c.metrics().draft_speedup) is not None), None)
    return {
        "time_to_first_token_ms": to_ms(first - arrival),
        "queue_time_ms": to_ms(queued),
        "prefill_time_ms": to_ms(first - arrival - queued),
        "generation_time_ms": to_ms(decode),
        "mean_itl_ms": to_ms(seconds / gaps) if gaps else None,
        "tokens_per_second": round(gaps / decode, 3) if decode > 0 else 0.0,
        **({} if speedup is None else {"draft_speedup": round(speedup, 3)}),
    }


def measure_llama_timings(*collectors: Collector) -> dict[str, float]:
    """llama-server's `timings`; `prompt_n` are computed tokens, `cache_n` cached ones."""
    arrival, queued, first, last = find_times(collectors)
    found = sum(c.cached for c in collectors)
    computed = sum(len(c.request.tokens) for c in collectors) - found
    made = sum(c.produced for c in collectors)
    shares = {
        "prompt": (computed, first - arrival - queued),
        "predicted": (made, last - first),
    }
    result: dict[str, float] = {"cache_n": found}
    for name, (tokens, seconds) in shares.items():
        result[f"{name}_n"] = tokens
        result[f"{name}_ms"] = to_ms(seconds)
        result[f"{name}_per_token_ms"] = to_ms(seconds / tokens) if tokens else 0.0
        result[f"{name}_per_second"] = round(tokens / seconds, 3) if seconds > 0 else 0.0
    return result


def report_usage(model: RequestModel, collectors: Sequence[Collector]) -> dict[str, Any]:
    """The fields of a reply of OpenAI about usage and times."""
    return {"usage": count_usage(collectors), **report_timings(model, *collectors)}


def report_timings(model: RequestModel, *collectors: Collector) -> dict[str, Any]:
    """Timings, the same in every API, with what is noted of the request, and what else was
    requested.
    """
    times = {**measure_timings(*collectors), **collectors[0].notes}
    return {"metrics": times, **report_extras(model, *collectors)}


def measure_vector_timings(*collectors: VectorCollector) -> dict[str, float]:
    """The same for vectors: from the first prompt that is computed to the last vector."""
    timed = [(c, c.event.timings) for c in collectors if c.event and c.event.timings]
    if not timed:
        return {}
    arrival = min(t.arrival for _, t in timed)
    begun = min(t.scheduled for _, t in timed)
    done = max(c.done for c, _ in timed)
    return {"queue_time_ms": to_ms(begun - arrival), "prefill_time_ms": to_ms(done - begun)}


def report_extras(model: RequestModel, *collectors: Collector | VectorCollector) -> dict[str, Any]:
    """The cache explanation and the cost, if they were requested."""
    found: dict[str, Any] = {}
    if any(c.request.explain for c in collectors):
        found["cache_explanation"] = explain_reuse(model, collectors)
    if any(c.request.measure for c in collectors):
        found["cost"] = report_cost(model, collectors)
    return found


def report_cost(
    model: RequestModel, collectors: Sequence[Collector | VectorCollector]
) -> dict[str, float | str]:
    """What the steps of all prompts took, and what that costs."""
    uses = [c.use for c in collectors if c.use is not None]
    total = sum(uses[1:], start=uses[0]) if uses else StepUse(0.0, None)
    prompt = sum(len(c.request.tokens) for c in collectors)
    made = sum(c.produced for c in collectors if isinstance(c, Collector))
    return describe_cost(model.settings, total, prompt, made)


def explain_reuse(
    model: RequestModel, collectors: Sequence[Collector | VectorCollector]
) -> list[dict[str, Any]]:
    """The cache explanation of each prompt that requested one.  If clients with different keys may
    share a cache without a salt, the place where prompts diverge is rounded to a block, which the
    number of cached tokens reveals anyway, and no text is shown: an exact place would let a client
    guess another's prompt token by token.
    """
    result = []
    for collector in collectors:
        found = collector.reuse
        if found is not None:
            exact = bool(collector.request.salt) or not model.settings.several_keys
            tokens = collector.request.tokens
            result.append(asdict(explain_cache(found, tokens, model.tokenizer, exact=exact)))
    return result


def find_times(collectors: Sequence[Collector]) -> tuple[float, float, float, float]:
    """When the first prompt arrived, how long the first answered one was queued, when its first
    token was computed, and the last token of all; zeros before that.
    """
    begun = [(c, m) for c in collectors if (m := c.metrics()).total]
    if not begun:
        return 0.0, 0.0, 0.0, 0.0
    arrival = min(c.request.arrival for c, _ in begun)
    first, queued = min((c.request.arrival + m.ttft, m.queued) for c, m in begun)
    return arrival, queued, first, max(c.request.arrival + m.total for c, m in begun)


def _sum_gaps(collectors: Sequence[Collector]) -> tuple[float, int]:
    found = [c.sum_gaps() for c in collectors]
    return sum(seconds for seconds, _ in found), sum(n for _, n in found)


def to_ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
