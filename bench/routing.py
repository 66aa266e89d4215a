"""Policies of routing over a trace, with replicas in virtual time; and what a decision takes.

    python bench/routing.py [TRACE] [--replicas 4] [--requests N] [--speed 2.5] [--blocks 4096]

The trace is Mooncake's conversations below FLYWEIGHT_DATA, in small: lengths are divided by
`--factor`, times by `--speed`.  A step takes 10 ms, 0.3 ms a token, 20 ns for each pair of a
prompt's token and one that it sees, and 0.2 us for each position that a decode sees.  Simulated
figures are the same on every machine; decisions are timed here.
"""

import argparse
import os
import random
import time
from itertools import islice
from pathlib import Path
from statistics import quantiles

from flyweight.bench.serving.traces import read_trace
from flyweight.config import Limits
from flyweight.planning.loop_cost import LoopCost
from flyweight.planning.queueing import ServerShape
from flyweight.planning.replicas import ReplicaRequest, ReplicaSimulator, TraceScale
from flyweight.planning.step_cost import CostLine, StepCostModel
from flyweight.routing.keys import RoutingKeys
from flyweight.routing.policies import BOUND, POLICIES, RoutingOptions, make_policy
from flyweight.routing.router import Router

TRACE = "traces-mooncake/conversation_trace.jsonl"
STEP, TOKEN, PAIR, POSITION = 10e-3, 0.3e-3, 20e-9, 0.2e-6
COSTS = StepCostModel(
    CostLine((0.0, 1.0), (STEP, STEP + TOKEN)), CostLine((1.0,), (0.0,)), POSITION, PAIR,
    LoopCost(0.0, 0.0),
)  # fmt: skip


def pick(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def compare(requests: list[ReplicaRequest], options: argparse.Namespace) -> None:
    """A row for each policy."""
    limits = Limits(
        max_model_len=16384, max_num_seqs=options.sequences, max_num_batched_tokens=2048,
        block_size=options.block_size, blocks=options.blocks,
    )  # fmt: skip
    simulator = ReplicaSimulator(
        ServerShape(limits, options.step_time, 3.0), COSTS.compute_seconds, options.replicas
    )
    names = "cached", "expected", "ratio", "TTFT p50", "p99", "busiest", "in steps", "decision p50"
    print("policy        " + "".join(f"{name:>13}" for name in (*names, "p99")))
    base = None
    for name in sorted(POLICIES, key=lambda name: name != "round-robin"):
        policy = make_policy(name, RoutingOptions(options.bound, seed=options.seed))
        found = simulator.run(requests, policy)
        base = base or found.cached_share
        times = [f"{pick([*found.ttft], percent):.3f} s" for percent in (50, 99)]
        took = [f"{1e6 * pick([*found.decisions], percent):.0f} us" for percent in (50, 99)]
        figures = [f"{found.cached_share:.1%}", f"{found.expected_share:.1%}"]
        figures += [f"{found.cached_share / base:.2f}x", *times]
        figures += [f"{found.busiest_share:.1%}", f"{found.utilization:.1%}", *took]
        print(f"{name:14}" + "".join(f"{figure:>13}" for figure in figures), flush=True)


def time_decisions(replicas: int, tokens: int, options: argparse.Namespace) -> None:
    """Conversations that grow to `tokens`, through full indexes, 64 requests outstanding."""
    rng, keys = random.Random(options.seed), RoutingKeys("", b"", options.block_size)
    talks = [[rng.randrange(1 << 20) for _ in range(tokens)] for _ in range(64)]
    chains = [keys.make_keys(talk) for talk in talks]
    for name in POLICIES:
        policy = make_policy(name, RoutingOptions(options.bound, seed=options.seed))
        router = Router(policy, options.block_size)
        for i in range(replicas):
            router.add_replica(str(i), options.blocks)
        wall, cpu = [], []
        for number in range(2000):
            one = rng.randrange(len(chains))
            chain = chains[one][: rng.randint(len(chains[one]) // 2, len(chains[one]))]
            start, began = time.perf_counter(), time.thread_time()
            router.begin(str(number), chain, len(chain) * options.block_size + 1)
            if number >= 64:
                router.finish(str(number - 64))
            cpu.append(time.thread_time() - began)
            wall.append(time.perf_counter() - start)
        figures = [f"{1e6 * pick(times, at):.0f}" for times in (wall, cpu) for at in (50, 99)]
        print(f"{name:14}{replicas:>10}{tokens:>10}" + "".join(f"{one:>10}" for one in figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--requests", type=int, help="of the trace [default: all]")
    parser.add_argument("--speed", type=float, default=2.5, help="arrivals, times the trace's")
    parser.add_argument("--factor", type=int, default=16, help="lengths are divided by it")
    parser.add_argument("--blocks", type=int, default=4096, help="of K/V of each replica")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=32, help="most of a step")
    parser.add_argument("--step-time", type=float, default=0.2, help="seconds, the target")
    parser.add_argument("--bound", type=int, default=BOUND, help="of `prefix`, in prompt tokens")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    path = options.trace or Path(os.environ.get("FLYWEIGHT_DATA", ".")) / TRACE
    scale = TraceScale(options.factor, options.speed)
    requests = scale.make_requests(islice(read_trace(path), options.requests))
    prompts = sum(len(one.tokens) for one in requests)
    outputs = sum(one.output for one in requests)
    print(f"{len(requests)} requests of {path.name}, {prompts:,} prompt tokens, {outputs:,} of "
          f"answers, in {requests[-1].at:.0f} s; {options.replicas} replicas of {options.blocks} "
          f"blocks of {options.block_size} tokens; bound {options.bound}")  # fmt: skip
    compare(requests, options)
    heads = ("replicas", "tokens", "wall p50", "p99", "CPU p50", "p99")
    print("\nmicroseconds  " + "".join(f"{head:>10}" for head in heads))
    for replicas, tokens in ((8, 8192), (64, 8192)):
        time_decisions(replicas, tokens, options)


if __name__ == "__main__":
    main()
