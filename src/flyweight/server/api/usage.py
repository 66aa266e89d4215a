"""What an answer cost: tokens, and where the time went.

Invariant: numbers of the request itself; nobody else's are in them.
"""

from collections.abc import Sequence
from typing import Any

from flyweight.collect import Collector, VectorCollector
from flyweight.results import RequestMetrics


def usage(collectors: Sequence[Collector | VectorCollector]) -> dict[str, Any]:
    """OpenAI's `usage`, over all prompts of an HTTP request."""
    prompt = sum(len(c.request.tokens) for c in collectors)
    made = sum(c.produced for c in collectors if isinstance(c, Collector))
    cached = sum(c.cached for c in collectors if isinstance(c, Collector))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(collector: Collector) -> dict[str, float | None]:
    """vLLM's `metrics`, in milliseconds, with prefill and decode beside them."""
    m: RequestMetrics = collector.metrics()
    made = collector.produced
    decode = m.total - m.ttft
    return {
        "time_to_first_token_ms": ms(m.ttft),
        "queue_time_ms": ms(m.queued),
        "prefill_time_ms": ms(m.ttft - m.queued),
        "generation_time_ms": ms(decode),
        "mean_itl_ms": ms(decode / (made - 1)) if made > 1 else None,
        "tokens_per_second": round(m.decode_rate, 3),
    }


def ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
