"""Predicted speed as a report: ceilings what is expected, and what was measured.

Invariant: values are seconds and rates; only columns write them in other units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from flyweight.plan.roofline import MachineLimits
from flyweight.planning.plots import LinePlot, Series
from flyweight.planning.report import Column, Report, ReportTable
from flyweight.planning.speed import SpeedRow
from flyweight.planning.units import (
    write_count,
    write_rate,
    write_ratio,
    write_seconds,
    write_share,
)

SPEEDS = (
    Column("step", "step"),
    Column("operations", "FLOP", write_count),
    Column("bytes", "bytes", write_count),
    Column("intensity", "FLOP/B", write_ratio),
    Column("limit", "limit"),
    Column("ceiling_tokens_per_second", "ceiling", write_rate),
    Column("expected_tokens_per_second", "expected", write_rate),
    Column("share", "share", write_share),
)
TIMES = (
    Column("what", "what"),
    Column("batch", "sequences"),
    Column("least_seconds", "at least", write_seconds),
    Column("seconds", "expected", write_seconds),
)
CHECKS = (
    Column("test", "test"),
    Column("least_seconds", "at least", write_seconds),
    Column("predicted_seconds", "predicted", write_seconds),
    Column("measured_seconds", "measured", write_seconds),
    Column("ratio", "predicted ÷ measured", lambda value: f"{value:.2f}"),
)

UNPUBLISHED = " Peaks of arithmetic are not published, so nothing is said of prompts."


@dataclass(frozen=True, slots=True)
class CheckedSpeed:
    """A test of `bench kernels`: seconds of a step or prompt at least, predicted and measured, and
    the ratio of both in the same round: the middle of the rounds'.
    """

    test: str
    least: float
    predicted: float
    measured: float
    ratio: float

    @classmethod
    def of(cls, test: str, least: float, pairs: Sequence[tuple[float, float]]) -> "CheckedSpeed":
        """From a pair (predicted, measured) for each round."""
        predicted, measured = (median(times) for times in zip(*pairs, strict=True))
        return cls(test, least, predicted, measured, median(a / b for a, b in pairs))


def report_speed(
    title: str, rows: Sequence[SpeedRow], limits: MachineLimits, notes: Sequence[str]
) -> Report:
    """The tables of `plan roofline`."""
    speeds = [
        (
            row.name,
            row.operations,
            row.nbytes,
            row.intensity,
            row.binds,
            row.tokens / row.least,
            None if row.seconds is None else row.tokens / row.seconds,
            row.share,
        )
        for row in rows
    ]
    decodes = [row for row in rows if not row.prompt]
    times = [
        (f"TTFT, {row.tokens} tokens" if row.prompt else "ITL", row.batch, row.least, row.seconds)
        for row in rows
    ]
    tables = [
        ReportTable("speed", f"{title}: tokens a second", SPEEDS, speeds),
        ReportTable("latency", "Latency", TIMES, times, (describe_limits(limits),)),
    ]
    return Report(title, tables, tuple(notes), plot_speed(title, decodes))


def make_check_table(checks: Sequence[CheckedSpeed]) -> ReportTable:
    """What was predicted, and what was measured."""
    rows = [(one.test, one.least, one.predicted, one.measured, one.ratio) for one in checks]
    notes = (
        "Tests of `bench kernels` on the whole model; rounds take turns with predictions, and the "
        "ratio is the median of the rounds' ratios.",
    )
    return ReportTable("check", "Predicted and measured: a prompt, or a step", CHECKS, rows, notes)


def plot_speed(title: str, decodes: Sequence[SpeedRow]) -> LinePlot | None:
    """Decoded tokens a second by the number of sequences."""
    ordered = sorted(decodes, key=lambda row: row.batch)
    if not ordered:
        return None
    ceiling = [(float(row.batch), row.tokens / row.least) for row in ordered]
    expected = [(float(r.batch), r.tokens / r.seconds) for r in ordered if r.seconds]
    series = [Series("ceiling", ceiling)] + ([Series("expected", expected)] if expected else [])
    return LinePlot(
        title=f"{title}: decoding",
        x="sequences in a step",
        y="tokens a second",
        series=series,
        log_x=len(ordered) > 1,
        log_y=True,
    )


def describe_limits(limits: MachineLimits) -> str:
    """The limits, and the intensity from which arithmetic binds."""
    peaks = {unit: limits.get_peak(unit) for unit in ("int8", "bf16", "f32")}
    known = {unit: peak for unit, peak in peaks.items() if peak < inf}
    words = "".join(f", {unit} {write_speed(peak)}" for unit, peak in known.items())
    ridges = ", ".join(
        f"{write_ratio(peak / limits.read)} ({unit})" for unit, peak in known.items()
    )
    bound = f" Above {ridges} FLOP/B, compute binds." if known else UNPUBLISHED
    return f"Limits: {limits.read / 1e9:.4g} GB/s{words}.{bound}"


def write_speed(operations: float) -> str:
    """261 GFLOP/s."""
    text = write_count(operations)
    return f"{text[:-1]} {text[-1]}FLOP/s"
