"""Several techniques after one another within a time, each on a model that its workload fits.

Invariant: what one technique leaves of its time goes to those after it; one that fails is reported
with its reason, and the others go on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flyweight.bench.facts import Surroundings, measure_size
from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.errors import ConfigError, FlyweightError
from flyweight.prove.baseline import Baseline
from flyweight.prove.outcome import ProveOutcome
from flyweight.prove.process import ProcessSide
from flyweight.prove.proved import ProvedSuite, ProveFailure
from flyweight.prove.runner import OpenSide, ProveListener, ProvePlan, prove
from flyweight.prove.stand_in import STAND_INS, StandIn
from flyweight.prove.technique import ProveJob, Technique


@dataclass(frozen=True, slots=True)
class SuiteRequest:
    """`seconds` for all techniques together; `model` None lets each choose.  With a `baseline`
    each does the work that was done for it.
    """

    techniques: Sequence[Technique]
    seconds: float
    model: str | None = None
    threads: int | None = None
    plan: ProvePlan = field(default_factory=ProvePlan)
    baseline: Baseline | None = None


class Suite:
    """Runs a request; stand-ins are written once, into a folder that is removed at the end."""

    def __init__(
        self,
        request: SuiteRequest,
        listener: ProveListener | None = None,
        open_side: OpenSide = ProcessSide,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request, self.open_side, self.clock = request, open_side, clock
        self.listener = listener or ProveListener()
        self._stand_ins: dict[str, StandIn] = {}
        self._given: Path | None = None

    def run(self, *, strict: bool = False) -> ProvedSuite:
        """Raises the first error of a technique if `strict`, and before anything is measured what
        is wrong with the model or the baseline.  Ctrl-C ends the run; what was found is returned.
        """
        outcomes: list[ProveOutcome] = []
        failures: list[ProveFailure] = []
        end = self.clock() + self.request.seconds
        techniques = self.request.techniques
        stopped = False
        with TemporaryDirectory(prefix="flyweight-prove-") as folder:
            self._given = self._find_given()
            chosen = [self._choose_model(one, Path(folder)) for one in techniques]
            shares = [
                self._find_share(*pair, strict) for pair in zip(techniques, chosen, strict=True)
            ]
            for i, technique in enumerate(techniques):
                seconds = max(0.0, end - self.clock()) / (len(techniques) - i)
                plan = replace(self.request.plan, seconds=seconds, share=shares[i])
                try:
                    found = self._prove(technique, chosen[i].path, plan, Path(folder))
                    notes = (chosen[i].note,) if chosen[i].note else ()
                    outcomes.append(replace(found, notes=(*notes, *found.notes)))
                except FlyweightError as error:
                    if strict:
                        raise
                    skipped = isinstance(error, ConfigError)
                    failures.append(ProveFailure(technique, str(error), skipped))
                except KeyboardInterrupt:
                    stopped = True
                    break
        model, around = self.request.model or "", Surroundings.here()
        return ProvedSuite(model, around, tuple(outcomes), tuple(failures), stopped)

    def _prove(
        self, technique: Technique, model: Path, plan: ProvePlan, folder: Path
    ) -> ProveOutcome:
        own = folder / technique.name
        own.mkdir()
        job = ProveJob(model, own, self.request.threads)
        return prove(technique, job, plan, self.open_side, self.listener, self.clock)

    def _find_share(self, technique: Technique, model: StandIn, strict: bool) -> float | None:
        """The share of the work that the baseline did.  Raises `ConfigError` where that was on
        another model, or by another metric.
        """
        baseline = self.request.baseline
        if baseline is None or not (strict or baseline.has(technique.name)):
            return None
        baseline.check_model(technique.name, model.path.name, measure_size(model.path))
        baseline.check_metric(technique.name, self.request.plan.metric or technique.metric)
        return baseline.find(technique.name).share

    def _find_given(self) -> Path | None:
        """The user's model, whose files are checked before anything is measured."""
        if self.request.model is None:
            return None
        path = find(Settings.of(model=self.request.model))
        describe(path).checkpoint.close()
        return path

    def _choose_model(self, technique: Technique, folder: Path) -> StandIn:
        """The user's model, else one that the workload fits."""
        name = technique.stand_in
        if self._given is not None or not name:
            return StandIn(self._given or find(Settings.of()), "")
        if name not in self._stand_ins:
            self._stand_ins[name] = STAND_INS[name](folder)
        return self._stand_ins[name]
