"""The founding document's estimate of memory, from a size and bits alone.

M = (P x 4 B) / (32 / Q) x 1.2, from the slide on GPU memory of "Optimizing LLM Inference on
Resource-Constrained Hardware": P parameters of 4 bytes, Q bits a weight, 20 % for everything else.

Knows no model: `memory.py` has the exact figure.
"""

from collections.abc import Sequence

from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.quantities import write_gb, write_params
from flyweight.planning.report import Column, Report, ReportTable

BYTES, FULL_BITS, OVERHEAD = 4, 32, 1.2
FORMULA = "M = (P x 4 B) / (32 / Q) x 1.2"
MARKS = (8, 16, 24, 80)  # GB of memory that plots mark


def estimate_memory(params: float, bits: float) -> float:
    """Bytes, by the formula above."""
    return params * BYTES / (FULL_BITS / bits) * OVERHEAD


def count_weight_bytes(params: float, bits: float) -> float:
    """Bytes of the weights alone: P x Q / 8."""
    return params * bits / 8


def report_estimates(params: Sequence[float], bits: Sequence[float]) -> Report:
    """The estimate for every size and number of bits."""
    rows = [
        (count, one, count_weight_bytes(count, one), estimate_memory(count, one))
        for count in params
        for one in bits
    ]
    columns = (
        Column("params", "parameters", write_params),
        Column("bits", "bits", lambda value: f"{value:g}"),
        Column("weight_bytes", "weights alone", write_gb),
        Column("bytes", "with 20 % more", write_gb),
    )
    notes = (
        f"{FORMULA}: P parameters, Q bits a weight; 1 GB = 10^9 bytes.",
        "It knows neither context nor batch; with a MODEL the exact figure is printed too.",
    )
    table = ReportTable("estimate", "Memory by the seed's formula", columns, rows, notes)
    return Report("Memory", [table], plot=plot_estimates(params, bits))


def plot_estimates(params: Sequence[float], bits: Sequence[float]) -> LinePlot:
    """Memory against model size, a line for each number of bits."""
    sizes = sorted(params)
    return LinePlot(
        title="Memory against model size",
        x="parameters, billions",
        y="memory, GB",
        series=[
            Series(
                f"{one:g} bits", [(size / 1e9, estimate_memory(size, one) / 1e9) for size in sizes]
            )
            for one in bits
        ],
        limits=[Limit(f"{mark} GB", mark) for mark in MARKS],
        log_x=len(sizes) > 1,
        log_y=True,
    )
