"""From what was measured to rows: means, spreads, shares of the limits, ratios.

Invariant: shares and ratios are made within a round, and only then is the middle taken.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flyweight.bench.facts import ModelFacts, Surroundings
from flyweight.bench.limits import LimitSample
from flyweight.bench.ours import BenchEngineOptions, TimedRun
from flyweight.bench.rows import OURS, BenchRow, Spread
from flyweight.bench.workloads import Workload
from flyweight.plan.roofline import Shape, StepShape, StepWork, sum_work


@dataclass(slots=True)
class PlotColumn:
    """One engine's measurements of one test, a round each: its time, the limits around it, the
    cores others used.
    """

    engine: str
    version: str
    isa: str
    timed: list[TimedRun] = field(default_factory=list)
    around: list[LimitSample] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlotSubject:
    """What rows of a run have in common."""

    facts: ModelFacts
    shape: Shape
    options: BenchEngineOptions
    kv_dtype: str
    threads: int
    around: Surroundings
    busy: int = 0


def make_rows(
    subject: PlotSubject, test: Workload, columns: Sequence[PlotColumn]
) -> list[BenchRow]:
    """A row an engine, ours first; peers' steps are taken to be ours."""
    ours = columns[0]
    assert ours.engine == OURS
    steps = ours.timed[0].steps
    found = [make_row(subject, test, ours, steps)]
    for column in columns[1:]:
        pairs = zip(column.timed, ours.timed, strict=True)
        ratio = Spread.of([theirs.seconds / mine.seconds for theirs, mine in pairs])
        found.append(make_row(subject, test, column, steps, ratio))
    return found


def make_row(
    subject: PlotSubject,
    test: Workload,
    column: PlotColumn,
    steps: Sequence[StepShape],
    ratio: Spread | None = None,
) -> BenchRow:
    facts, options, around = subject.facts, subject.options, subject.around
    seconds = [timed.seconds for timed in column.timed]
    speeds = [test.timed / s for s in seconds]
    vector = [sample.vector for sample in column.around]
    bound = [sum_work(subject.shape, steps, limits) for limits in vector]
    middle = statistics.median(seconds)
    return BenchRow(
        engine=column.engine,
        version=column.version,
        isa=column.isa,
        test=test.name,
        build_commit=around.commit,
        cpu_info=around.cpu,
        backends="CPU",
        model_filename=facts.name,
        model_type=facts.kind,
        model_size=facts.nbytes,
        model_n_params=facts.params,
        n_batch=options.max_num_batched_tokens,
        n_threads=subject.threads,
        type_k=subject.kv_dtype,
        type_v=subject.kv_dtype,
        activations=options.activations,
        n_prompt=test.prompt,
        n_gen=test.gen,
        n_depth=test.depth,
        n_seqs=test.seqs,
        n_shared=test.shared,
        n_busy=subject.busy,
        test_time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        avg_ns=round(1e9 * statistics.mean(seconds)),
        stddev_ns=round(1e9 * compute_deviation(seconds)),
        avg_ts=statistics.mean(speeds),
        stddev_ts=compute_deviation(speeds),
        samples_ns=tuple(round(1e9 * s) for s in seconds),
        samples_ts=tuple(speeds),
        gbps=bound[0].nbytes / middle / 1e9,
        gops=bound[0].operations / middle / 1e9,
        limit_read=statistics.median(limits.read for limits in vector) / 1e9,
        limit_int8=statistics.median(limits.int8 for limits in vector) / 1e9,
        limit_bf16=statistics.median(limits.bf16 for limits in vector) / 1e9,
        other_cores=statistics.median(column.others),
        share=compute_shares(bound, seconds),
        share_tile=compute_tile_shares(subject.shape, column, steps, seconds),
        ratio=ratio,
        outside_us=statistics.median(timed.outside_us for timed in column.timed),
    )


def compute_tile_shares(
    shape: Shape, column: PlotColumn, steps: Sequence[StepShape], seconds: Sequence[float]
) -> Spread | None:
    """Of the limits with a tile unit's peaks, where there is one."""
    tiles = [sample.tile for sample in column.around if sample.tile is not None]
    if len(tiles) < len(seconds):
        return None
    return compute_shares([sum_work(shape, steps, tile) for tile in tiles], seconds)


def compute_shares(bound: Sequence[StepWork], seconds: Sequence[float]) -> Spread:
    return Spread.of([b.seconds / s for b, s in zip(bound, seconds, strict=True)])


def compute_deviation(figures: Sequence[float]) -> float:
    """Standard deviation, 0 of a single figure."""
    return statistics.stdev(figures) if len(figures) > 1 else 0.0
