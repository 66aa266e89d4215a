"""Options of `flyweight plan capacity` for several replicas and a trace.

Invariant: an option of one server is refused with `--replicas`, and one of replicas without it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyweight.cli.amounts import amount
from flyweight.config import whole
from flyweight.errors import ConfigError

if TYPE_CHECKING:  # commands import what computes when they run
    from flyweight.planning.capacity import LatencyTargets
    from flyweight.planning.replica_plan import ReplicaQuestion

MOST_REQUESTS = 1_000_000
SHARED = ("seed",)  # options of one server that replicas have too


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Replicas behind a router, and the trace that they serve."""

    replicas: Annotated[
        str | None,
        typer.Option(metavar="N,N|LOW..HIGH", help="Numbers of replicas to simulate: 1..10000."),
    ] = None
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Requests to replicas: Azure's .csv, Mooncake's .jsonl."),
    ] = None
    trace_factor: Annotated[
        int, typer.Option(metavar="N", help="Number that lengths of the trace are divided by.")
    ] = 1
    request_rate: Annotated[
        float | None,
        amount("request_rate", 1, metavar="N", help="Requests a second.  [default: the trace's]"),
    ] = None
    requests: Annotated[
        int, typer.Option(metavar="N", help="Requests to simulate for each number of replicas.")
    ] = 1000
    routing: Annotated[
        str,
        typer.Option(metavar="NAME", help="Routing: prefix, round-robin or power-of-two."),
    ] = "prefix"
    mtbf: Annotated[
        float, amount("mtbf", 720, metavar="HOURS", help="Mean time between failures of a replica.")
    ] = 720
    restart_time: Annotated[
        str, typer.Option(metavar="TIME", help="Time until a failed replica is back.")
    ] = "60s"
    gpu_hourly: Annotated[
        float, amount("gpu_hourly", 2.0, metavar="DOLLARS", help="Price of a replica for an hour.")
    ] = 2.0
    costs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Costs of steps; timed and saved if it does not exist."),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Device with published limits.  [default: this one]"),
    ] = None

    def judge(self, single: Any) -> None:
        """Raises `ConfigError` for options that contradict; `single` are those of one server."""
        if self.replicas is None:
            unused = _find_given(self)
            if unused:
                raise ConfigError(f"{unused} is of replicas; leave it out, or give replicas")
            return
        unused = _find_given(single, SHARED)
        if unused:
            raise ConfigError(f"{unused} does not apply to replicas; leave it out")
        if self.trace is None:
            raise ConfigError("replicas needs a trace, of Azure's CSV or Mooncake's lines of JSON")
        if self.costs is not None and self.device is not None:
            raise ConfigError("costs and device exclude each other; leave one out")

    def ask(self, targets: LatencyTargets, seed: int) -> ReplicaQuestion:
        """Raises `ConfigError`."""
        from flyweight.planning.cost import HOUR
        from flyweight.planning.replica_plan import ReplicaQuestion
        from flyweight.planning.replica_run import FailurePlan
        from flyweight.planning.replica_search import ReplicaNumbers
        from flyweight.validation.durations import parse_seconds

        assert self.replicas is not None and self.trace is not None
        whole("requests", self.requests, 10, MOST_REQUESTS)
        whole("seed", seed, 0, 2**32)
        restart = parse_seconds("restart_time", self.restart_time)
        return ReplicaQuestion(
            ReplicaNumbers.parse(self.replicas), Path(self.trace), self.trace_factor,
            self.request_rate, self.requests, self.routing,
            FailurePlan(HOUR * self.mtbf, restart, seed), targets, self.gpu_hourly,
            None if self.costs is None else Path(self.costs), self.device,
        )  # fmt: skip


def _find_given(options: Any, but: tuple[str, ...] = ()) -> str | None:
    """The first option with another value than the usual."""
    usual = type(options)()
    names = (one.name for one in fields(options) if one.name not in but)
    return next((name for name in names if getattr(options, name) != getattr(usual, name)), None)
