"""The report of a load: vLLM's block, its JSON, its file's name.

Invariant: labels, order and keys are vLLM's; what is ours comes after what is theirs.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flyweight.bench.serving.arrivals import ArrivalRate
from flyweight.bench.serving.drafts import DraftStatistics
from flyweight.bench.serving.load import LoadResult
from flyweight.bench.serving.summary import LatencyTimes, LoadSummary

TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
WIDTH, LABEL = 50, 40
DETAILS = (
    "input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors",
)  # fmt: skip
REASONS = 5  # of failures that are shown


@dataclass(frozen=True, slots=True)
class ReportHeader:
    """What a result says of the run that made it; `hourly` is the machine's price in dollars."""

    backend: str
    model: str
    tokenizer: str
    count: int
    pace: ArrivalRate
    most: int | None
    label: str | None = None
    hourly: float | None = None

    def compute_cost(self, rate: float) -> float | None:
        """Dollars of a million output tokens, `rate` a second."""
        return self.hourly / 3600 / rate * 1e6 if self.hourly is not None and rate else None


def write_block(
    summary: LoadSummary,
    header: ReportHeader,
    metrics: Sequence[str],
    drafts: DraftStatistics | None = None,
) -> Iterator[str]:
    """The lines of the printed result."""
    yield f"{' Serving Benchmark Result ':=^{WIDTH}}"
    yield format_row("Successful requests", summary.completed)
    yield format_row("Failed requests", summary.failed)
    if header.most is not None:
        yield format_row("Maximum request concurrency", header.most)
    if not math.isinf(header.pace.rate):
        yield format_row("Request rate configured (RPS)", header.pace.rate)
    yield format_row("Benchmark duration (s)", summary.seconds)
    yield format_row("Total input tokens", summary.input_tokens)
    yield format_row("Total generated tokens", summary.output_tokens)
    yield format_row("Request throughput (req/s)", summary.requests)
    if summary.good is not None:
        yield format_row("Request goodput (req/s)", summary.good)
    yield format_row("Output token throughput (tok/s)", summary.output)
    yield format_row("Peak output token throughput (tok/s)", summary.peak_output)
    yield format_row("Peak concurrent requests", float(summary.peak_requests))
    yield format_row("Total token throughput (tok/s)", summary.total)
    yield format_row("Concurrency", summary.concurrency)
    yield format_row("Client processor time (us/chunk)", summary.processor_us)
    cost = header.compute_cost(summary.output)
    if cost is not None:
        yield f"{'Cost of 1M output tokens ($):':<{LABEL}} {cost:<10.3g}"
    for name in metrics:
        yield f"{TITLES[name]:-^{WIDTH}}"
        for label, value in list_figures(summary.times[name]).items():
            yield format_row(f"{label} {name.upper()} (ms)", value)
    if drafts is not None:
        yield f"{'Speculative Decoding':-^{WIDTH}}"
        for label, value in drafts.list_rows():
            yield format_row(label, value)
        if drafts.rates:
            yield "Per-position acceptance (%):"
        for place, rate in enumerate(drafts.rates):
            yield format_row(f"  Position {place}", 100 * rate)
    yield "=" * WIDTH


def list_figures(times: LatencyTimes) -> dict[str, float]:
    named = {f"P{percent:g}": value for percent, value in times.percentiles.items()}
    return {"Mean": times.mean, "Median": times.median, **named}


def format_row(label: str, value: float) -> str:
    shown = str(value) if isinstance(value, int) else f"{value:.2f}"
    return f"{label + ':':<{LABEL}} {shown:<10}"


def list_reasons(summary: LoadSummary) -> Iterator[str]:
    """Why requests failed, the commonest first."""
    for why, count in [*summary.reasons.items()][:REASONS]:
        yield f"{count} failed: {why}"
    rest = len(summary.reasons) - REASONS
    if rest > 0:
        yield f"... and {rest} other reasons"


def find_miscounts(played: LoadResult) -> Iterator[str]:
    """What to say where the server read prompts as other numbers of tokens than they were made of,
    which a chat's template does of itself.
    """
    pairs = zip(played.load.requests, played.answers, strict=True)
    odd = [(request.length, a.prompt_counted) for request, a in pairs if a.ok and a.prompt_counted]
    odd = [(made, counted) for made, counted in odd if made != counted]
    if odd:
        made, counted = odd[0]
        yield (
            f"the server counts {len(odd)} prompts differently ({counted} tokens for {made}): "
            "is --tokenizer its own?"
        )


def make_document(
    summary: LoadSummary,
    header: ReportHeader,
    metrics: Sequence[str],
    played: LoadResult,
    *,
    detailed: bool,
) -> dict[str, Any]:
    """vLLM's keys; those of every request where they are wanted."""
    ramp = header.pace
    found: dict[str, Any] = {"date": time.strftime("%Y%m%d-%H%M%S")} | describe_load(header)
    if ramp.ramp is not None:
        found["ramp_up_strategy"] = ramp.ramp
        found["ramp_up_start_rps"] = ramp.ramp_start
        found["ramp_up_end_rps"] = ramp.ramp_end
    found |= {
        "duration": summary.seconds,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.input_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.requests,
        "request_goodput": summary.good,
        "output_throughput": summary.output,
        "total_token_throughput": summary.total,
        "max_output_tokens_per_s": summary.peak_output,
        "max_concurrent_requests": summary.peak_requests,
        "concurrency": summary.concurrency,
        "client_us_per_chunk": summary.processor_us,
        "cost_per_million_output_tokens": header.compute_cost(summary.output),
        "failures": dict(summary.reasons),
    }
    for name in metrics:
        found |= _name_figures(name, summary.times[name])
    if ramp.ramp is not None:
        found["rps_change_events"] = list_events(ramp, played)
    if played.drafts is not None:
        found |= played.drafts.to_document()
    return found | (list_details(played) if detailed else {})


def describe_load(header: ReportHeader) -> dict[str, Any]:
    """vLLM's keys of what was sent, and where."""
    pace = header.pace
    return {
        "backend": header.backend,
        "endpoint_type": header.backend,
        "label": header.label,
        "model_id": header.model,
        "tokenizer_id": header.tokenizer,
        "num_prompts": header.count,
        "request_rate": "inf" if math.isinf(pace.rate) else pace.rate,
        "burstiness": "inf" if math.isinf(pace.burstiness) else pace.burstiness,
        "max_concurrency": header.most,
    }


def list_events(pace: ArrivalRate, played: LoadResult) -> list[dict[str, Any]]:
    """When a ramp reached which rate."""
    times = played.load.times
    return [
        {"rps": rate, "timestamp": datetime.fromtimestamp(played.began + times[i]).isoformat()}
        for i, rate in pace.list_growth(len(times))
    ]


def list_details(played: LoadResult) -> dict[str, list[Any]]:
    """Request by request, in the order they were sent."""
    answers = played.answers
    columns: tuple[list[Any], ...] = (
        [request.length for request in played.load.requests],
        [a.tokens if a.ok else 0 for a in answers],
        [a.start for a in answers],
        [a.ttft for a in answers],
        [a.itls for a in answers],
        [a.text for a in answers],
        [a.error for a in answers],
    )
    return dict(zip(DETAILS, columns, strict=True))


def make_file_name(header: ReportHeader) -> str:
    """As vLLM names results: backend, rate, concurrency, model, date."""
    most = f"-concurrency{header.most}" if header.most is not None else ""
    model = header.model.rstrip("/").split("/")[-1]
    now = time.strftime("%Y%m%d-%H%M%S")
    label = header.label or header.backend
    pace = header.pace
    if pace.ramp is not None:
        speed = f"ramp-up-{pace.ramp}-{pace.ramp_start:g}qps-{pace.ramp_end:g}qps"
    else:
        speed = f"{pace.rate}qps"
    return f"{label}-{speed}{most}-{model}-{now}.json"


def _name_figures(name: str, times: LatencyTimes) -> dict[str, float]:
    found = {"mean": times.mean, "median": times.median, "std": times.std}
    found |= {f"p{percent:g}": value for percent, value in times.percentiles.items()}
    return {f"{key}_{name}_ms": value for key, value in found.items()}
