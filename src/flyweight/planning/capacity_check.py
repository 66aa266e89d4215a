"""Rates around a predicted capacity, served over HTTP: what `plan capacity --validate` measures.

The server is a process with the same settings, the load is that of `bench serve` in an open loop.

Invariant: a simulated rate has the arrival times of the measured one; prompts share nothing, not
even with those of another rate.  The client runs on the machine that it measures.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flyweight.bench.facts import OtherProcesses
from flyweight.bench.serving.arrivals import ArrivalRate
from flyweight.bench.serving.datasets import Random
from flyweight.bench.serving.load import LoadResult
from flyweight.bench.serving.session import LoadPlan, LoadSession, RequestBody, TargetServer
from flyweight.errors import EngineError
from flyweight.planning.capacity import LONG, PATIENT, SHARE, Capacity, LatencyTargets, RatePoint
from flyweight.planning.local_server import LocalServer
from flyweight.planning.queueing import ArrivalLoad, QueueSimulator, ServedTimes

LADDER = (0.5, 0.75, 0.9, 1.0, 1.15, 1.3)  # of the capacity
STEPS, DOWN, UP = 3, 0.6, 1.4  # further rates, where all of these are on one side
SHORTEST, LONGEST = 5.0, 20.0  # seconds of a load
LEAST, MOST = 20, 2000  # its requests
WARM = 8  # requests before
EVERY = 0.5  # seconds between reports of progress: what draws them shares a core with the server
GREEDY = RequestBody({"temperature": 0.0}, ignore_eos=True)
ReportRound = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ValidatedRate:
    """A rate as it was simulated, and as it was measured; `client` and `others` are the
    cores that the load's client and other processes used meanwhile.  `failed` requests, most for
    the reason `why`, have missed the targets.
    """

    predicted: RatePoint
    measured: RatePoint
    client: float = 0.0
    others: float = 0.0
    failed: int = 0
    why: str = ""


class RateCheck:
    """Serves a load at a rate and simulates it, one rate after the other."""

    def __init__(
        self,
        server: LocalServer,
        simulator: QueueSimulator,
        targets: LatencyTargets,
        note: Callable[[str], None],
        report_round: ReportRound,
    ) -> None:
        self.server, self.simulator, self.targets = server, simulator, targets
        self.note, self.report_round = note, report_round
        self._played = 0

    def measure(self, load: ArrivalLoad, rate: float) -> ValidatedRate:
        """Raises `EngineError` where no request is answered."""
        others = OtherProcesses(self.server.pids)
        played = self.play(load, rate)
        cores = others.measure_cores()
        simulated = self.simulator.serve(load, played.load.times)
        predicted = RatePoint.of(rate, load, simulated, self.targets)
        reasons = Counter(one.error or "no answer" for one in played.answers if not one.ok)
        if reasons.total() == load.count:
            raise EngineError(f"no request was answered: {next(iter(reasons))}")
        measured = RatePoint.of(rate, load, read_times(played), self.targets)
        answered = 1 - reasons.total() / load.count
        return ValidatedRate(
            predicted, replace(measured, met=answered * measured.met),
            played.processor / played.seconds, cores, reasons.total(),
            "".join(why for why, _ in reasons.most_common(1)),
        )  # fmt: skip

    def play(self, load: ArrivalLoad, rate: float) -> LoadResult:
        """As `bench serve --dataset-name random --request-rate`; each time with other prompts."""
        data, pace = Random(load.prompt, load.output), ArrivalRate(rate)
        self._played += 1
        seed = load.seed + self._played
        wanted = LoadPlan(data, load.count, pace, seed=seed, form="ids", prefix=f"plan-{seed}-")
        shown = -EVERY

        def report_progress(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= EVERY or done == total:
                shown = now
                self.report_round(f"{rate:.3g} requests/s", done, total)

        with LoadSession(wanted, GREEDY, self.note) as session:
            session.look(TargetServer(self.server.place, "openai"), 0)
            return session.play(session.servers[0], session.load(), report_progress)


def choose_count(rate: float, found: Capacity, load: ArrivalLoad, targets: LatencyTargets) -> int:
    """Requests of a load that lasts as long as in the prediction, within bounds."""
    alone = found.alone.ttft + found.alone.itl_p90 * (load.output - 1)
    seconds = min(max(LONG * alone, PATIENT * targets.ttft, SHORTEST), LONGEST)
    return min(max(LEAST, round(rate * seconds)), MOST)


def measure_around(
    capacity: float, measure: Callable[[float], ValidatedRate]
) -> list[ValidatedRate]:
    """Rates around a capacity, and some below or above while the measured knee is not between two
    of them; ascending.
    """
    found = [measure(factor * capacity) for factor in LADDER]
    for _ in range(STEPS):
        if find_knee([one.measured for one in found]) is not None:
            break
        if found[0].measured.met < SHARE:
            found.insert(0, measure(DOWN * found[0].measured.rate))
        else:
            found.append(measure(UP * found[-1].measured.rate))
    return found


def find_knee(points: Sequence[RatePoint]) -> float | None:
    """The rate at which nine of ten requests meet the targets, on the line between two points; None
    where all points are on one side.
    """
    for a, b in pairwise(points):
        if a.met >= SHARE > b.met:
            return a.rate + (b.rate - a.rate) * (a.met - SHARE) / (a.met - b.met)
    return None


def read_times(played: LoadResult) -> ServedTimes:
    """What `bench serve` counts, for each request that was answered."""
    answers = [answer for answer in played.answers if answer.ok]
    ends = [answer.start + answer.latency for answer in answers]
    return ServedTimes(
        ttft=tuple(answer.ttft for answer in answers),
        itl=tuple(answer.tpot for answer in answers),
        e2el=tuple(answer.latency for answer in answers),
        seconds=max(ends) - min(answer.start for answer in answers),
    )
