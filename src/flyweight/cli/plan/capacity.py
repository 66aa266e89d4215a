"""`flyweight plan capacity MODEL`: requests a second and users within latency targets, or the
replicas that a trace needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from flyweight.cli import options as opt
from flyweight.cli.parameters import Values, expand
from flyweight.cli.plan.replicas import ReplicaOptions
from flyweight.cli.reports import PlotOutput
from flyweight.config import Settings, whole

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.capacity import LatencyTargets
    from flyweight.planning.capacity_plan import CapacityQuestion

MOST_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """What nine of ten requests should see."""

    ttft: Annotated[
        str, typer.Option(metavar="TIME", help="Max time to first token (p90): 1s, 300ms.")
    ] = "1s"
    itl: Annotated[
        str, typer.Option(metavar="TIME", help="Max mean time between tokens (p90).")
    ] = "60ms"

    def read(self) -> LatencyTargets:
        """Raises `ConfigError`."""
        from flyweight.planning.capacity import LatencyTargets
        from flyweight.validation.durations import parse_seconds

        ttft, itl = parse_seconds("ttft", self.ttft), parse_seconds("itl", self.itl)
        return LatencyTargets(ttft, itl, (self.ttft, self.itl))


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """The requests that come to one server."""

    prompt_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of each prompt.")] = 256
    output_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of each answer.")] = 64
    think_time: Annotated[
        str, typer.Option(metavar="TIME", help="Time a user takes before the next request.")
    ] = "10s"
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the arrival times, or of failures.")
    ] = 0
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Start a server and load it over HTTP, for minutes."),
    ] = False

    def ask(self, targets: LatencyTargets) -> CapacityQuestion:
        """Raises `ConfigError`."""
        from flyweight.planning.capacity_plan import CapacityQuestion
        from flyweight.planning.queueing import ArrivalLoad
        from flyweight.validation.durations import parse_seconds

        whole("prompt_tokens", self.prompt_tokens, 1, MOST_TOKENS)
        whole("output_tokens", self.output_tokens, 2, MOST_TOKENS)
        whole("seed", self.seed, 0, 2**32)
        load = ArrivalLoad(self.prompt_tokens, self.output_tokens, seed=self.seed)
        return CapacityQuestion(load, targets, parse_seconds("think_time", self.think_time))


@expand
def capacity(
    *,
    model: opt.Model = "stories",
    wanted: LatencyOptions,
    asked: CapacityOptions,
    spread: ReplicaOptions,
    engine: Annotated[
        Values,
        opt.select_settings(
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "memory_limit",
            "kv_cache_dtype",
            "threads",
            "activations",
            "revision",
            "offline",
        ),
    ],
    out: PlotOutput,
) -> None:
    """Predict the users or replicas that latency targets allow.

    Simulates the server's scheduler on a cost model of its steps, fitted here to part of the model
    with made-up weights. Arrivals are a Poisson process; with --replicas, those of --trace, on
    replicas behind a router.
    """
    from flyweight.cli.bench.progress import show_measuring
    from flyweight.planning.capacity_plan import predict_capacity
    from flyweight.planning.replica_plan import predict_replicas

    out.check()
    spread.judge(asked)
    settings = Settings.of(model=model, **engine)
    if spread.replicas is not None:
        replicas = spread.ask(wanted.read(), asked.seed)
        with show_measuring() as listener:
            report = predict_replicas(settings, replicas, listener)
    else:
        question = asked.ask(wanted.read())
        with show_measuring() as listener:
            report = predict_capacity(settings, question, listener, validate=asked.validate)
    out.show(report)
