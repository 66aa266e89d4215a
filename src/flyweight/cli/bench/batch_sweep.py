"""`flyweight bench batch-sweep [MODEL]`: memory, latency and throughput by batch size."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.bench import options as by
from flyweight.cli.bench.offline import InputLen, OutputLen, Speculation
from flyweight.cli.parameters import expand
from flyweight.cli.reports import ReportOutput

Batches = Annotated[
    str, typer.Option("-b", "--batch", metavar="N,N", help="Sizes of batches to time.")
]
Rounds = Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Rounds to measure.")]


@expand
def batch_sweep(
    *,
    model: opt.Model = "stories",
    batch: Batches = "1,2,4,8,16,32",
    input_len: InputLen = 32,
    output_len: OutputLen = 64,
    repetitions: Rounds = 3,
    speculative_config: Speculation = "",
    engine: by.MeasuredEngine,
    out: ReportOutput,
) -> None:
    """Time batches of growing size, and name the best that fits.

    Efficiency is throughput against the smallest batch.  Sizes that would need more than
    --memory-limit are listed and not run.
    """
    from flyweight.bench.batch_sweep import MOST_BATCH, BatchSweep, measure_batches
    from flyweight.bench.workloads import parse_numbers
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.planning.batches import report_batches

    sizes = parse_numbers("batch", batch, 1, MOST_BATCH)
    settings = {**asdict(engine), "speculative_config": speculative_config}
    sweep = BatchSweep(model, sizes, input_len, output_len, repetitions, settings)
    with show_measuring() as listener:
        results = measure_batches(sweep, listener)
    out.show(report_batches(sweep, results, engine.memory_limit))
