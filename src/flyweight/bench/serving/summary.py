"""From answers to figures: vLLM's, counted as vLLM counts them.

Invariant: only whole answers count for times and tokens; every gap between two chunks counts once
(long answers weigh more), a first token, a token's mean time and a latency count once a request.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.bench.serving.load import LoadResult
from flyweight.errors import ConfigError, nearest

METRICS = ("ttft", "tpot", "itl", "e2el")
GOALS = ("ttft", "tpot", "e2el")  # what a request has one of


@dataclass(frozen=True, slots=True)
class LatencyTimes:
    """One metric over all answers, in milliseconds."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Sequence[float], percents: Sequence[float]) -> "LatencyTimes":
        values = 1e3 * np.array(seconds or [0.0], np.float64)
        pairs = {percent: float(np.percentile(values, percent)) for percent in percents}
        return cls(float(values.mean()), float(np.median(values)), float(values.std()), pairs)


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """A load's figures; rates are per second."""

    completed: int
    failed: int
    reasons: Mapping[str, int]
    seconds: float
    input_tokens: int
    output_tokens: int
    requests: float
    good: float | None
    output: float
    total: float
    peak_output: float
    peak_requests: int
    concurrency: float
    chunks: int
    processor_us: float
    times: Mapping[str, LatencyTimes]


def summarize(
    played: LoadResult, percents: Sequence[float], goals: Mapping[str, float]
) -> LoadSummary:
    """`goals` are milliseconds a request must keep to be counted as good."""
    pairs = [
        (request, a)
        for request, a in zip(played.load.requests, played.answers, strict=True)
        if a.ok
    ]
    whole = [answer for _, answer in pairs]
    bad = Counter(a.error or "no answer" for a in played.answers if not a.ok)
    given, made = sum(request.length for request, _ in pairs), sum(a.tokens for a in whole)
    chunks = sum(len(a.times) for a in played.answers)
    seconds = played.seconds or math.inf
    each = {
        "ttft": [a.ttft for a in whole],
        "tpot": [a.tpot for a in whole if a.tokens > 1],
        "itl": [gap for a in whole for gap in a.itls],
        "e2el": [a.latency for a in whole],
    }
    seen = {"ttft": each["ttft"], "tpot": [a.tpot for a in whole], "e2el": each["e2el"]}
    kept = [
        all(seen[name][i] * 1e3 <= most for name, most in goals.items()) for i in range(len(whole))
    ]
    peak_output, peak_requests = find_peaks(played)
    return LoadSummary(
        completed=len(whole),
        failed=len(played.answers) - len(whole),
        reasons=dict(bad.most_common()),
        seconds=played.seconds,
        input_tokens=given,
        output_tokens=made,
        requests=len(whole) / seconds,
        good=sum(kept) / seconds if goals else None,
        output=made / seconds,
        total=(given + made) / seconds,
        peak_output=peak_output,
        peak_requests=peak_requests,
        concurrency=sum(each["e2el"]) / seconds,
        chunks=chunks,
        processor_us=1e6 * played.processor / max(1, chunks),
        times={name: LatencyTimes.of(values, percents) for name, values in each.items()},
    )


def find_peaks(played: LoadResult) -> tuple[float, int]:
    """Most tokens in a second, most requests under way in one; seconds begin with the first
    request.
    """
    whole = [a for a in played.answers if a.ok]
    if not whole:
        return 0.0, 0
    start = min(a.start for a in whole)
    tokens: dict[int, float] = defaultdict(float)
    running: Counter[int] = Counter()
    for answer in whole:
        share = answer.tokens / len(answer.times)  # a chunk may hold several
        for moment, count in Counter(int(t - start) for t in answer.times).items():
            tokens[moment] += count * share
        running.update(range(int(answer.start - start), int(answer.times[-1] - start) + 1))
    return max(tokens.values()), max(running.values())


def parse_goals(words: Sequence[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` as milliseconds by name.  Raises `ConfigError`."""
    found = {}
    for word in words:
        name, colon, text = word.partition(":")
        if name not in GOALS:
            known = ", ".join(GOALS)
            raise ConfigError(f"goodput = {word!r}; known: {known}{nearest(name, GOALS)}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not colon or not 0 < value < math.inf:
            raise ConfigError(f"goodput = {word!r}: write NAME:MILLISECONDS, as in ttft:500")
        found[name] = value
    return found


def parse_metrics(text: str) -> list[str]:
    """`ttft,tpot` in the order of the block.  Raises `ConfigError`."""
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in METRICS:
            known = ", ".join(METRICS)
            raise ConfigError(
                f"percentile_metrics = {text!r}: {word!r}; known: {known}{nearest(word, METRICS)}"
            )
    return [name for name in METRICS if name in wanted]


def parse_percents(text: str) -> list[float]:
    """`50,99.9`.  Raises `ConfigError`."""
    try:
        found = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = [math.nan]
    if not all(0 <= percent <= 100 for percent in found):
        raise ConfigError(f"metric_percentiles = {text!r}; allowed: numbers of 0 to 100 and commas")
    return found
