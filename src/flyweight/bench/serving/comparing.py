"""Compares the results of two loads, by the keys of vLLM's JSON: of two servers, or of a run and a
file that an earlier one wrote.

Invariant: only runs that completed the same number of requests are compared: fewer answers are
faster answers.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flyweight.bench.serving.report import LABEL, WIDTH
from flyweight.errors import ConfigError

BETTER = {  # figures that are compared, their keys, and whether more is better
    "Output token throughput (tok/s)": ("output_throughput", True),
    "Total token throughput (tok/s)": ("total_token_throughput", True),
    "Request throughput (req/s)": ("request_throughput", True),
    "Median TTFT (ms)": ("median_ttft_ms", False),
    "P99 TTFT (ms)": ("p99_ttft_ms", False),
    "Median TPOT (ms)": ("median_tpot_ms", False),
    "Median ITL (ms)": ("median_itl_ms", False),
    "P99 ITL (ms)": ("p99_itl_ms", False),
    "Median E2EL (ms)": ("median_e2el_ms", False),
}
SAME = ("num_prompts", "request_rate", "max_concurrency")  # of runs that may be compared
Result = Mapping[str, Any]


def find_inequality(ours: Result, other: Result) -> str:
    """Why two results cannot be compared; empty where they can."""
    done, theirs = ours["completed"], other["completed"]
    if done != theirs:
        return f"{done} requests completed here and {theirs} there; equal work is compared only"
    if not done:
        return "no request completed"
    return ""


def compare(ours: Result, other: Result) -> dict[str, tuple[float, float, float]]:
    """This run's figures, the other's, and how many times better ours are; none for runs of unequal
    work.
    """
    found: dict[str, tuple[float, float, float]] = {}
    if find_inequality(ours, other):
        return found
    for label, (key, more) in BETTER.items():
        a, b = ours.get(key), other.get(key)
        if a is None or b is None:  # a percentile that was not requested
            continue
        above, below = (a, b) if more else (b, a)
        if below > 0:  # answers of one chunk have no gaps
            found[label] = (a, b, above / below)
    return found


def write_comparison(ours: Result, other: Result, name: str) -> Iterator[str]:
    """The lines of the comparison; above 1 is better than the other, whatever is measured."""
    yield f"{f' Compared with {name} ':-^{WIDTH + 20}}"
    yield f"{'':<{LABEL - 6}} {'this':>10} {'other':>10} {'better':>10}"
    for label, (a, b, ratio) in compare(ours, other).items():
        yield f"{label + ':':<{LABEL - 6}} {a:>10.2f} {b:>10.2f} {f'x{ratio:.2f}':>10}"
    yield "=" * (WIDTH + 20)


def read_result(path: Path) -> Result:
    """The last result of a file that `--save-result` or `--append-result` wrote.  Raises
    `ConfigError`.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        found = json.loads(lines[-1])
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", "compare", value=str(path)) from None
    except (ValueError, IndexError, RecursionError):
        found = None
    keys = ("completed", "output_throughput", *SAME)
    if not isinstance(found, dict) or not all(key in found for key in keys):
        raise ConfigError(
            "is not a result of bench serve",
            "compare",
            value=str(path),
            hint="make one with --save-result",
        )
    return found


def check_load(ours: Result, other: Result, name: str) -> None:
    """Raises `ConfigError` where a saved result is of another load."""
    for key in SAME:
        if ours[key] != other[key]:
            raise ConfigError(
                f"is of another load: {key} is {other[key]} there and {ours[key]} here",
                "compare",
                value=name,
            )
