"""Replicas in processes of their own, and the simulation of `plan capacity --replicas`.

    python bench/fleet_check.py [TRACE] [--replicas 1,2,4] [--requests 60] [--busy 0.5] [--slow 10]

Each replica is a process with the engine, its scheduler, prefix cache and step budgets.  A step
sleeps for what the cost model says, and computes nothing, so that replicas need no core each.  This
process is the front end: requests of a trace arrive on time and go where the router says.  The
simulation has the same requests, costs and limits.

`--slow` makes all times longer, of steps, their targets and arrivals alike, where a machine with
other work wakes processes late.  `--busy` is the share of the time that replicas should compute.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import mean, quantiles

from flyweight.bench.serving.traces import read_trace
from flyweight.config import Limits
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.runner import Ticket
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import Plan
from flyweight.kv.blocks import BlockPool
from flyweight.plan.roofline import StepShape
from flyweight.planning.loop_cost import IdleRunner
from flyweight.planning.queueing import GREEDY, ServerShape, describe_plan
from flyweight.planning.replica_load import TraceLoad
from flyweight.planning.replica_run import ReplicaRequest, ReplicaRun, RequestOutcome
from flyweight.planning.replicas import TraceScale
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import make_policy
from flyweight.routing.router import Router
from flyweight.server.worker.budget import BudgetController
from flyweight.types import Request
from flyweight.wire import Sampled

TRACE = "traces-mooncake/conversation_trace.jsonl"
STEP, TOKEN, PAIR = 20e-3, 0.3e-3, 20e-9
LIMITS = Limits(
    max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=1024, block_size=32, blocks=4096
)


@dataclass(frozen=True)
class SleepCost:
    """Seconds of a step, `slow` times those of the model."""

    slow: float

    def compute_seconds(self, seen: StepShape) -> float:
        pairs = sum(count * context for count, context in seen.chunks)
        return self.slow * (STEP + TOKEN * seen.tokens + PAIR * pairs)

    @property
    def server(self) -> ServerShape:
        return ServerShape(LIMITS, 0.2 * self.slow, 3.0 * self.slow)


@dataclass
class SleepingRunner(IdleRunner):
    """Answers token 1 once the step has lasted as long as it costs."""

    cost: SleepCost
    began: float = 0.0
    shape: tuple[int, int] = (0, 0)  # tokens of prompts, and others
    seconds: float = 0.0

    def note(self, plan: Plan) -> None:
        seen, prompts = describe_plan(plan)
        self.shape, self.seconds = (prompts, seen.tokens - prompts), self.cost.compute_seconds(seen)

    def wait(self, ticket: Ticket) -> Sampled:
        time.sleep(max(0.0, self.began + self.seconds - time.monotonic()))
        return ticket.sampled


def serve(pipe: Connection, cost: SleepCost) -> None:
    """A replica: takes (id, tokens, output, salt), sends [(id, cached, finished)] after each step,
    and its seconds in steps in the end.
    """
    runner, server = SleepingRunner(cost), cost.server
    pool = BlockPool(LIMITS.blocks, LIMITS.block_size)
    engine = Engine(Scheduler(LIMITS, pool), runner, None, EngineMetrics())
    control = BudgetController(server.step_time, LIMITS.max_num_batched_tokens,
                               server.prefill_delay)  # fmt: skip
    busy = 0.0
    while True:
        while pipe.poll(None if not engine.busy else 0):
            given = pipe.recv()
            if given is None:
                pipe.send(busy)
                return
            id, tokens, output, salt = given
            engine.add(Request(id, tokens, GREEDY, max_tokens=output, salt=salt))
        runner.began = time.monotonic()
        events = engine.step(control.budget(engine.scheduler.load()), runner.note)
        took = time.monotonic() - runner.began
        control.record(*runner.shape, took)
        busy += took
        pipe.send([(one.id, one.cached, bool(one.finish)) for one in events])


@dataclass
class FrontEnd:
    """Sends requests to processes as they arrive, and notes when tokens come back."""

    replicas: int
    cost: SleepCost
    records: list[RequestOutcome] = field(default_factory=list)
    lates: list[float] = field(default_factory=list)  # seconds that requests were sent too late

    def run(self, requests: Sequence[ReplicaRequest]) -> list[float]:
        """Returns the seconds in steps of each replica."""
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(self.replicas)]
        children = [context.Process(target=serve, args=(far, self.cost)) for _, far in ends]
        pipes = [near for near, _ in ends]
        for child in children:
            child.start()
        try:
            self._play(requests, pipes)
            for pipe in pipes:
                pipe.send(None)
            return [float(pipe.recv()) for pipe in pipes]
        finally:
            for child in children:
                child.terminate()
                child.join()

    def _play(self, requests: Sequence[ReplicaRequest], pipes: Sequence[Connection]) -> None:
        router = Router(make_policy("prefix"), LIMITS.block_size)
        for place in range(self.replicas):
            router.add_replica(str(place), LIMITS.blocks)
        keys = RoutingKeys("", b"", LIMITS.block_size)
        time.sleep(5)  # processes import what they need
        begin, left, sent = time.monotonic(), len(requests), 0
        while left:
            now = time.monotonic() - begin
            if sent < len(requests) and requests[sent].at <= now:
                one = requests[sent]
                self.records.append(RequestOutcome(one.at, len(one.tokens), one.output))
                route = router.begin(str(sent), keys.make_keys(one.tokens, one.salt),
                                     len(one.tokens))  # fmt: skip
                assert route is not None, "replicas stay"
                self.records[sent].replica = route.replica.number
                pipes[route.replica.number].send((str(sent), one.tokens, one.output, one.salt))
                self.lates.append(now - one.at)
                sent += 1
                continue
            pause = requests[sent].at - now if sent < len(requests) else None
            for pipe in wait(pipes, pause):
                assert isinstance(pipe, Connection)
                left -= self._take(pipe.recv(), time.monotonic() - begin, router)

    def _take(self, events: list[tuple[str, int, bool]], now: float, router: Router) -> int:
        """How many requests have ended."""
        for id, cached, finished in events:
            record = self.records[int(id)]
            if record.first is None:
                record.first, record.cached = now, cached
            if finished:
                record.last = now
                router.finish(id)
        return sum(finished for _, _, finished in events)


def summarize(records: Sequence[RequestOutcome], busy: Sequence[float]) -> list[float]:
    """Share cached, TTFT mean, p50 and p90, ITL mean, share of the time in steps."""
    ttft = [(one.first or 0.0) - one.at for one in records]
    itl = [((one.last or 0.0) - (one.first or 0.0)) / (one.output - 1)
           for one in records if one.output > 1]  # fmt: skip
    cuts = quantiles(ttft, n=10, method="inclusive")
    seconds = max(one.last or 0.0 for one in records)
    cached = sum(one.cached for one in records) / sum(one.prompt for one in records)
    return [cached, mean(ttft), cuts[4], cuts[8], mean(itl), sum(busy) / len(busy) / seconds]


def simulate(
    requests: Sequence[ReplicaRequest], replicas: int, cost: SleepCost
) -> tuple[list[RequestOutcome], list[float]]:
    run = ReplicaRun((cost.server, cost.compute_seconds), replicas, make_policy("prefix"))
    return run.run(requests), [one.busy for one in run.replicas]


def draw_requests(
    load: TraceLoad, replicas: int, options: argparse.Namespace
) -> list[ReplicaRequest]:
    """The first requests of the trace, at distances with which replicas are as busy as wanted: the
    simulation is run until they are.
    """
    cost = SleepCost(options.slow)
    drawn = [*islice(load.draw(1.0, load.span), options.requests * replicas)]
    by = 1.0
    for _ in range(8):
        spread = [ReplicaRequest(by * one.at, one.tokens, one.output, one.salt) for one in drawn]
        records, busy = simulate(spread, replicas, cost)
        by *= summarize(records, busy)[-1] / options.busy
    return spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--requests", type=int, default=60, help="for each replica")
    parser.add_argument("--busy", type=float, default=0.5)
    parser.add_argument("--slow", type=float, default=10.0)
    parser.add_argument("--factor", type=int, default=32, help="lengths are divided by it")
    options = parser.parse_args()
    path = options.trace or Path(os.environ.get("FLYWEIGHT_DATA", ".")) / TRACE
    load = TraceLoad.of(islice(read_trace(path), 4000), TraceScale(options.factor),
                        LIMITS.max_model_len, None)  # fmt: skip
    heads = "cached", "TTFT mean", "p50", "p90", "ITL mean", "busy"
    print(f"{'':24}" + "".join(f"{head:>12}" for head in heads))
    for replicas in map(int, options.replicas.split(",")):
        requests, cost = draw_requests(load, replicas, options), SleepCost(options.slow)
        simulated = summarize(*simulate(requests, replicas, cost))
        front = FrontEnd(replicas, cost)
        busy = front.run(requests)
        measured = summarize(front.records, busy)
        ratios = [b / a if a else float("nan") for a, b in zip(simulated, measured, strict=True)]
        for name, values in (("simulated", simulated), ("processes", measured), ("ratio", ratios)):
            figures = "".join(f"{value:>12.3f}" for value in values)
            print(f"{replicas} replicas, {name:12}{figures}", flush=True)
        late = quantiles(front.lates, n=10, method="inclusive")[8]
        print(f"  {len(requests)} requests in {requests[-1].at:.0f} s; sent late by {late:.3f} s "
              "(p90)", file=sys.stderr, flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
