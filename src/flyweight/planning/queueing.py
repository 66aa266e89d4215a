"""Requests that arrive at random, served in simulated time: the engine's own scheduler and budgets
on a cost model of steps.

Arrivals are a Poisson process with a seed; prompts share nothing.  Time is counted, not measured.

Invariant: the same seed, rate and costs give the same figures.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyweight.config import Limits
from flyweight.engine.scheduler import Scheduler
from flyweight.engine.step import Plan, Produced
from flyweight.kv.blocks import BlockPool
from flyweight.plan.roofline import StepShape
from flyweight.server.worker.budget import BudgetController
from flyweight.types import Event, Request, SamplingParams

GREEDY = SamplingParams(temperature=0, ignore_eos=True)
MADE, NOTHING = Produced((1,)), Produced(())
Cost = Callable[[StepShape], float]


@dataclass(frozen=True, slots=True)
class ArrivalLoad:
    """`count` requests of `prompt` tokens that want `output` tokens each, at random times."""

    prompt: int
    output: int
    count: int = 200
    seed: int = 0

    def draw_arrivals(self, rate: float) -> list[float]:
        """Seconds, ascending: a Poisson process of so many a second."""
        draw, now, found = random.Random(self.seed), 0.0, []
        for _ in range(self.count):
            now += draw.expovariate(rate)
            found.append(now)
        return found


@dataclass(frozen=True, slots=True)
class ServerShape:
    """What the server is set to: limits of a step, and the seconds that a step should take and
    that prompts may lose to decodes.
    """

    limits: Limits
    step_time: float
    prefill_delay: float


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """What became of every request, in seconds: `ttft`, `itl` (the mean of its own), `e2el`; and
    how long all took from the first arrival.
    """

    ttft: tuple[float, ...]
    itl: tuple[float, ...]
    e2el: tuple[float, ...]
    seconds: float

    @property
    def concurrency(self) -> float:
        """Requests under way on average."""
        return sum(self.e2el) / self.seconds


class VirtualEngine:
    """The scheduler, block pool and step budgets of one engine, whose steps take what they cost, in
    virtual time.
    """

    def __init__(self, server: ServerShape, cost: Cost) -> None:
        limits, self.cost = server.limits, cost
        self.now = 0.0
        self.scheduler = Scheduler(
            limits, BlockPool(limits.blocks, limits.block_size), clock=lambda: self.now
        )
        most = limits.max_num_batched_tokens
        self.control = BudgetController(server.step_time, most, server.prefill_delay)
        self.plan: Plan | None = None  # of the step under way

    def begin_step(self, now: float) -> float:
        """Plans a step of what there is; returns when it ends."""
        self.now = now
        self.plan = self.scheduler.schedule(self.control.budget(self.scheduler.load()))
        seen, prompts = describe_plan(self.plan)
        seconds = self.cost(seen)
        self.control.record(prompts, seen.tokens - prompts, seconds)
        return now + seconds

    def end_step(self, now: float) -> list[Event]:
        """What came of the step under way, which ends now."""
        assert self.plan is not None, "no step is under way"
        plan, self.plan, self.now = self.plan, None, now
        produced = [MADE if chunk.drawn else NOTHING for chunk in plan.chunks]
        return self.scheduler.commit(plan, produced)


class QueueSimulator:
    """Serves a load in simulated time."""

    def __init__(self, server: ServerShape, cost: Cost) -> None:
        self.server, self.cost = server, cost

    def run(self, load: ArrivalLoad, rate: float) -> ServedTimes:
        """All requests of a load at a rate."""
        return self.serve(load, load.draw_arrivals(rate))

    def serve(self, load: ArrivalLoad, arrivals: Sequence[float]) -> ServedTimes:
        """All requests of a load, which come at these times."""
        engine, now = VirtualEngine(self.server, self.cost), 0.0
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        sent, prompt = 0, tuple([1] * load.prompt)
        while len(last) < load.count:
            if not engine.scheduler.busy:
                now = max(now, arrivals[sent])
            while sent < load.count and arrivals[sent] <= now:
                engine.scheduler.add(Request(str(sent), prompt, GREEDY, max_tokens=load.output))
                sent += 1
            now = engine.begin_step(now)
            for event in engine.end_step(now):
                first.setdefault(int(event.id), now)
                if event.finish:
                    last[int(event.id)] = now
        return summarize_times(arrivals, first, last, load.output)


def describe_plan(plan: Plan) -> tuple[StepShape, int]:
    """The step as the roofline counts it, and how many of its tokens are of prompts."""
    chunks = tuple((chunk.count, chunk.start + chunk.count) for chunk in plan.chunks)
    prompts = sum(chunk.count for chunk in plan.chunks if not chunk.seq.decoding)
    return StepShape(chunks, plan.logits, sum(context for _, context in chunks)), prompts


def summarize_times(
    arrivals: Sequence[float], first: dict[int, float], last: dict[int, float], output: int
) -> ServedTimes:
    ids = range(len(arrivals))
    gaps = max(1, output - 1)
    return ServedTimes(
        ttft=tuple(first[i] - arrivals[i] for i in ids),
        itl=tuple((last[i] - first[i]) / gaps for i in ids),
        e2el=tuple(last[i] - arrivals[i] for i in ids),
        seconds=max(last.values()) - arrivals[0],
    )
