"""The load of a simulation, served by the engine itself in real time: what `--validate` measures.

The loop, the scheduler and the step budgets are the server's; HTTP and tokenising are left out, as
in the simulation.

Invariant: requests arrive at the times that the simulation had them arrive, and share no prompt.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flyweight.bench.workloads import make_ids
from flyweight.build import LoadedModel
from flyweight.engine.step import Plan
from flyweight.planning.capacity import SHARE, RatePoint
from flyweight.planning.queueing import (
    GREEDY,
    ArrivalLoad,
    ServedTimes,
    ServerShape,
    describe_plan,
    summarize_times,
)
from flyweight.server.worker.budget import BudgetController
from flyweight.types import Request


@dataclass(frozen=True, slots=True)
class ValidatedRate:
    """A rate as it was simulated, and as it was measured."""

    predicted: RatePoint
    measured: RatePoint


class LiveServer:
    """A loaded model that serves loads, one after the other."""

    def __init__(self, loaded: LoadedModel, server: ServerShape) -> None:
        self.loaded, self.server = loaded, server
        most = server.limits.max_num_batched_tokens
        self._control = BudgetController(server.step_time, most, server.prefill_delay)
        self._shape = 0, 0
        self._sent = 0

    def run(self, load: ArrivalLoad, rate: float) -> ServedTimes:
        """All requests of a load at a rate, in real time."""
        engine, arrivals = self.loaded.engine, load.draw_arrivals(rate)
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        base, sent, began = self._sent, 0, time.perf_counter()
        self._sent += load.count
        while len(last) < load.count:
            now = time.perf_counter() - began
            if not engine.busy and arrivals[sent] > now:
                time.sleep(arrivals[sent] - now)
                now = time.perf_counter() - began
            while sent < load.count and arrivals[sent] <= now:
                engine.add(self._make_request(base + sent, load))
                sent += 1
            if not engine.busy:
                continue  # the clock ran a little short of the arrival
            events = self._step()
            now = time.perf_counter() - began
            for id, over in events:
                first.setdefault(id - base, now)
                if over:
                    last[id - base] = now
        return summarize_times(arrivals, first, last, load.output)

    def _make_request(self, number: int, load: ArrivalLoad) -> Request:
        ids = make_ids(self.loaded.spec.vocab, load.prompt, number)
        return Request(
            str(number), tuple(ids), GREEDY, max_tokens=load.output, salt=f"live-{number}"
        )

    def _step(self) -> list[tuple[int, bool]]:
        """Numbers of the requests that got a token, and whether they are over."""
        engine, began = self.loaded.engine, time.perf_counter()
        events = engine.step(self._control.budget(engine.scheduler.load()), self._note)
        self.loaded.moving.step()
        self._control.record(*self._shape, time.perf_counter() - began)
        return [(int(event.id), event.finish is not None) for event in events if event.tokens]

    def _note(self, plan: Plan) -> None:
        seen, prompts = describe_plan(plan)
        self._shape = prompts, seen.tokens - prompts


def find_knee(points: Sequence[RatePoint]) -> float | None:
    """The rate at which nine of ten requests meet the targets, on the line between two points; None
    where all points are on one side.
    """
    for a, b in pairwise(points):
        if a.met >= SHARE > b.met:
            return a.rate + (b.rate - a.rate) * (a.met - SHARE) / (a.met - b.met)
    return None
