"""The report of `bench batch-sweep`: memory, latency, throughput and efficiency by batch size.

Invariant: efficiency is throughput against that of the smallest size; the founding document's
figures, of a GPU with 80 GB and a model of 7B, are next to ours and never compared as numbers.
"""

from collections.abc import Sequence

from flyweight.bench.batch_sweep import BatchResult, BatchSweep, choose_best
from flyweight.planning.report import Column, Report, ReportTable, Value
from flyweight.planning.units import write_binary

SEED_EFFICIENCY = {1: 1.0, 2: 1.6, 4: 2.3, 8: 3.2, 16: 4.9, 32: 7.1}


def report_batches(sweep: BatchSweep, results: Sequence[BatchResult], limit: str) -> Report:
    """`limit` is the memory limit as it was given."""
    best, base = choose_best(results), next(one for one in results if one.rate)
    columns = [
        Column("batch", "batch"),
        Column("memory", "memory", write_binary, "does not fit"),
        Column("latency_ms", "latency", lambda ms: f"{ms:,.1f} ms"),
        Column("requests_per_s", "requests/s", lambda rate: f"{rate:,.2f}"),
        Column("efficiency", "efficiency", lambda ratio: f"{ratio:.2f}x"),
        Column("seed_efficiency", "course", lambda ratio: f"{ratio:.1f}x"),
    ]
    rows: list[list[Value]] = [
        [
            one.size,
            one.memory,
            1e3 * one.seconds if one.seconds else None,
            one.rate,
            one.rate / base.rate if one.rate and base.rate else None,
            SEED_EFFICIENCY.get(one.size),
        ]
        for one in results
    ]
    notes = (
        f"Best within a memory limit of {limit}: {best.size} "
        f"({best.rate:,.2f} requests/s).  Memory is what the engine plans at most.",
        f"{sweep.input_len} tokens in, {sweep.output_len} out; latency is the median of "
        f"{sweep.rounds} rounds, from the first request to the last token of the batch.",
        "The course's efficiency is that of a 7B model on a GPU with 80 GB.",
    )
    strong = frozenset(i for i, one in enumerate(results) if one is best)
    table = ReportTable("batches", "Requests in a batch", columns, rows, notes, strong)
    return Report("Batch sizes", [table])
