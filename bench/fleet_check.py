"""Replicas in processes of their own, beside the simulation of `plan capacity --replicas`.

    python bench/fleet_check.py [TRACE] [--replicas 1,2,4] [--seconds 50] [--busy 0.6] [--slow 2]

Each replica is a process with the engine, its scheduler, prefix cache and step budgets.  A step
sleeps for what the cost model says, and computes nothing, so that replicas need no core each.  This
process is the front end: requests arrive on time and go where the router says.  The simulation has
the same requests, costs and limits; in neither is there HTTP, text, or a queue that is full.

Requests are a part of the trace's conversations, so many that they come in about `--seconds` where
replicas compute for the share `--busy` of the time.  In a second run, `overload`, they come at the
rate at which that share would be 2: its tokens/s are the capacity.

With `--policies`, processes have the same requests by each policy of the router, at the first load,
and nothing is compared with the simulation.

`difference` is that of the processes from the simulation.  `spread` is the largest difference of
the simulation from itself where requests come up to 5 ms times `--slow` later, at random: a small
delay sends a request elsewhere, and a percentile of few requests moves with it.  `--slow` makes
steps, their targets and arrivals longer alike, where a machine wakes processes late.
"""

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import quantiles

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
from flyweight.planning.replica_points import compute_itl, compute_ttft, pick_percentiles
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
    max_model_len=4096, max_num_seqs=32, max_num_batched_tokens=1024, block_size=32, blocks=512
)
FIGURES = "cached", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "tokens/s", "busy"
CLOSE = 0.15  # the bar for a difference
DELAY = 5e-3  # seconds that requests come later, at most, for the spread
DRAWS = 5  # simulations of it
POLICIES = "round-robin", "power-of-two", "prefix"
OVERLOAD = 2.0  # share of the time that replicas would compute


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
    """A replica: sends [] when it is ready, takes (id, tokens, output, salt), sends [(id, cached,
    finished)] after each step, and in the end its seconds in steps, and those that they cost.
    """
    runner, server = SleepingRunner(cost), cost.server
    pool = BlockPool(LIMITS.blocks, LIMITS.block_size)
    engine = Engine(Scheduler(LIMITS, pool), runner, None, EngineMetrics())
    control = BudgetController(server.step_time, LIMITS.max_num_batched_tokens,
                               server.prefill_delay)  # fmt: skip
    busy = planned = 0.0
    pipe.send([])
    while True:
        while pipe.poll(None if not engine.busy else 0):
            given = pipe.recv()
            if given is None:
                pipe.send((busy, planned))
                return
            id, tokens, output, salt = given
            engine.add(Request(id, tokens, GREEDY, max_tokens=output, salt=salt))
        runner.began, runner.seconds = time.monotonic(), 0.0
        events = engine.step(control.budget(engine.scheduler.load()), runner.note)
        took = time.monotonic() - runner.began
        if runner.seconds:
            control.record(*runner.shape, took)
        busy, planned = busy + took, planned + runner.seconds
        if events:
            pipe.send([(one.id, one.cached, bool(one.finish)) for one in events])


@dataclass
class FrontEnd:
    """Sends requests to processes as they arrive, and notes when tokens come back.  `lates` are
    seconds that requests were sent too late, `longer` is the share by which steps took longer than
    they cost.
    """

    replicas: int
    cost: SleepCost
    policy: str = "prefix"
    records: list[RequestOutcome] = field(default_factory=list)
    lates: list[float] = field(default_factory=list)
    longer: float = 0.0

    def run(self, requests: Sequence[ReplicaRequest]) -> list[float]:
        """Returns the seconds in steps of each replica."""
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(self.replicas)]
        children = [context.Process(target=serve, args=(far, self.cost)) for _, far in ends]
        pipes = [near for near, _ in ends]
        for child in children:
            child.start()
        for _, far in ends:
            far.close()  # a replica that ends is then noticed
        try:
            for pipe in pipes:
                pipe.recv()  # it is ready
            self._play(requests, pipes)
            for pipe in pipes:
                pipe.send(None)
            steps = [pipe.recv() for pipe in pipes]
        finally:
            for child in children:
                child.terminate()
                child.join()
        self.longer = sum(took for took, _ in steps) / sum(cost for _, cost in steps) - 1
        return [took for took, _ in steps]

    def _play(self, requests: Sequence[ReplicaRequest], pipes: Sequence[Connection]) -> None:
        router = Router(make_policy(self.policy), LIMITS.block_size)
        for place in range(self.replicas):
            router.add_replica(str(place), LIMITS.blocks)
        keys = RoutingKeys("", b"", LIMITS.block_size)
        begin, left, sent = time.monotonic(), len(requests), 0
        while left:
            now = time.monotonic() - begin
            if sent < len(requests) and requests[sent].at <= now:
                one = requests[sent]
                chain = keys.make_keys(one.tokens, one.salt)
                route = router.begin(str(sent), chain, len(one.tokens))
                assert route is not None, "replicas stay"
                place = route.replica.number
                self.records.append(RequestOutcome(one.at, len(one.tokens), one.output))
                pipes[place].send((str(sent), one.tokens, one.output, one.salt))
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
    """`FIGURES`, as the report of `plan capacity` has them."""
    ttft = pick_percentiles([compute_ttft(one) for one in records])
    itl = pick_percentiles([compute_itl(one) for one in records if one.output > 1])
    assert ttft is not None and itl is not None
    seconds = max(one.last or 0.0 for one in records)
    cached = sum(one.cached for one in records) / sum(one.prompt for one in records)
    output = sum(one.output for one in records)
    return [cached, *ttft, *itl, output / seconds, sum(busy) / len(busy) / seconds]


def simulate(requests: Sequence[ReplicaRequest], replicas: int, cost: SleepCost) -> list[float]:
    run = ReplicaRun((cost.server, cost.compute_seconds), replicas, make_policy("prefix"))
    records = run.run(requests)
    return summarize(records, [one.busy for one in run.replicas])


def stretch(requests: Sequence[ReplicaRequest], by: float) -> list[ReplicaRequest]:
    first = requests[0].at
    return [replace(one, at=by * (one.at - first)) for one in requests]


def delay(requests: Sequence[ReplicaRequest], most: float, seed: int) -> list[ReplicaRequest]:
    """Each comes later, at random, and none before another that it came after."""
    draw = random.Random(seed)
    times = sorted(one.at + draw.uniform(0, most) for one in requests)
    return [replace(one, at=at) for at, one in zip(times, requests, strict=True)]


def draw_requests(
    load: TraceLoad, replicas: int, count: float, options: argparse.Namespace
) -> list[ReplicaRequest]:
    """About `count` requests for each replica, at distances with which replicas are as busy as
    wanted: the simulation is run until they are.
    """
    drawn = [*load.draw(min(1.0, count * replicas / len(load.requests)), load.span)]
    assert len(drawn) > 1, "the trace has too few conversations"
    spread = stretch(drawn, 1.0)
    for _ in range(8):
        busy = simulate(spread, replicas, SleepCost(options.slow))[-1]
        if abs(busy / options.busy - 1) < 0.02:
            break
        spread = stretch(spread, busy / options.busy)
    return spread


def fit_requests(
    load: TraceLoad, replicas: int, options: argparse.Namespace
) -> list[ReplicaRequest]:
    """So many that they come in the seconds wanted."""
    count = 40.0
    for _ in range(3):
        found = draw_requests(load, replicas, count, options)
        if abs(found[-1].at / options.seconds - 1) < 0.1:
            break
        count *= options.seconds / found[-1].at
    return found


def compare(name: str, requests: Sequence[ReplicaRequest], replicas: int, cost: SleepCost) -> int:
    """Prints a row for each figure; returns how many differ by more than the bar."""
    expected = simulate(requests, replicas, cost)
    others = [simulate(delay(requests, cost.slow * DELAY, seed), replicas, cost)
              for seed in range(DRAWS)]  # fmt: skip
    front = FrontEnd(replicas, cost)
    busy = front.run(requests)
    found, far = summarize(front.records, busy), 0
    for i, figure in enumerate(FIGURES):
        difference = found[i] / expected[i] - 1 if expected[i] else float("nan")
        spread = max(abs(one[i] / expected[i] - 1) for one in others) if expected[i] else 0.0
        beyond = not abs(difference) <= CLOSE
        far += beyond
        print(f"| {name} | {replicas} | {figure} | {found[i]:.3f} | {expected[i]:.3f} "
              f"| {difference:+.1%}{' (beyond the bar)' if beyond else ''} | {spread:.1%} |",
              flush=True)  # fmt: skip
    late = 1e3 * quantiles(front.lates, n=10, method="inclusive")[8]
    print(f"{len(requests)} requests in {requests[-1].at:.0f} s, sent late by {late:.1f} ms (p90); "
          f"steps took {front.longer:.1%} longer than they cost",
          file=sys.stderr, flush=True)  # fmt: skip
    return far


def compare_policies(requests: Sequence[ReplicaRequest], replicas: int, cost: SleepCost) -> None:
    """Prints a row for each policy of the router."""
    print("| replicas | policy | cached | ratio | TTFT p50 | TTFT p99 | busy |")
    print("|---:|---|---:|---:|---:|---:|---:|", flush=True)
    base = None
    for policy in POLICIES:
        front = FrontEnd(replicas, cost, policy)
        cached, p50, p99, *_, busy = summarize(front.records, front.run(requests))
        base = cached if base is None else base
        ratio = f"{cached / base:.2f}" if base else "-"
        print(f"| {replicas} | `{policy}` | {cached:.1%} | {ratio} | {p50:.3f} s "
              f"| {p99:.3f} s | {busy:.1%} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--busy", type=float, default=0.6)
    parser.add_argument("--slow", type=float, default=2.0)
    parser.add_argument("--factor", type=int, default=32, help="lengths are divided by it")
    parser.add_argument("--policies", action="store_true", help="compare the router's policies")
    options = parser.parse_args()
    path = options.trace or Path(os.environ.get("FLYWEIGHT_DATA", ".")) / TRACE
    load = TraceLoad.of(read_trace(path), TraceScale(options.factor), LIMITS.max_model_len, None)
    cost, far, rows = SleepCost(options.slow), 0, 0
    if options.policies:
        for replicas in map(int, options.replicas.split(",")):
            compare_policies(fit_requests(load, replicas, options), replicas, cost)
        return
    print("| load | replicas | figure | processes | simulated | difference | spread |")
    print("|---|---:|---|---:|---:|---:|---:|", flush=True)
    for replicas in map(int, options.replicas.split(",")):
        usual = fit_requests(load, replicas, options)
        loads = {f"{options.busy:.0%} busy": usual,
                 "overload": stretch(usual, options.busy / OVERLOAD)}  # fmt: skip
        for name, requests in loads.items():
            far += compare(name, requests, replicas, cost)
            rows += len(FIGURES)
    print(f"\n{rows - far} of {rows} figures are within {CLOSE:.0%} of the simulation.")


if __name__ == "__main__":
    main()
