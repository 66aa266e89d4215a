"""The founding document's estimate of memory, from a size and bits alone.

M = (P x 4 B) / (32 / Q) x 1.2, from the slide on GPU memory of "Optimizing LLM Inference on
Resource-Constrained Hardware": P parameters of 4 bytes, Q bits a weight, 20 % for everything else.

Knows no model: `memory.py` has the exact figure.
"""

from collections.abc import Callable, Sequence
from itertools import product

from flyweight.planning.plots import Limit, LinePlot, Series
from flyweight.planning.quantities import write_gb, write_params
from flyweight.planning.report import Column, Report, ReportTable, Value

BYTES, FULL_BITS, OVERHEAD = 4, 32, 1.2
FORMULA = "M = (P x 4 B) / (32 / Q) x 1.2"
CONTEXT = 4096  # tokens of the exact figure
MARKS = (8, 16, 24, 80)  # GB of memory that plots mark


# Bytes of a model of nearly so many parameters with so many bits, and its name.
ExactFinder = Callable[[float, float], tuple[int | None, str | None]]


def find_nothing(params: float, bits: float) -> tuple[None, None]:
    """No model has that size."""
    return None, None


def estimate_memory(params: float, bits: float) -> float:
    """Bytes, by the formula above."""
    return params * BYTES / (FULL_BITS / bits) * OVERHEAD


def count_weight_bytes(params: float, bits: float) -> float:
    """Bytes of the weights alone: P x Q / 8."""
    return params * bits / 8


def report_estimates(
    params: Sequence[float], bits: Sequence[float], find_exact: ExactFinder = find_nothing
) -> Report:
    """The estimate for every size and number of bits, and the exact figure where there is one."""
    rows: list[tuple[Value, ...]] = []
    for count, one in product(params, bits):
        seed, (exact, model) = estimate_memory(count, one), find_exact(count, one)
        share = None if exact is None else (exact - seed) / seed
        rows.append((count, one, count_weight_bytes(count, one), seed, exact, share, model))
    columns = (
        Column("params", "size", write_params),
        Column("bits", "bits", lambda value: f"{value:g}"),
        Column("weight_bytes", "weights", write_gb),
        Column("bytes", "estimate", write_gb),
        Column("exact_bytes", "exact", write_gb),
        Column("difference", "difference", lambda share: f"{100 * share:+.0f} %"),
        Column("model", "exact for"),
    )
    notes = (
        f"{FORMULA}: P parameters, Q bits a weight; 1 GB = 10^9 bytes.",
        f"Exact: a server with one sequence of {CONTEXT:,} tokens, for a model of about that size; "
        "give a MODEL for its own figure.",
    )
    table = ReportTable("estimate", "Memory by the course's formula", columns, rows, notes)
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
