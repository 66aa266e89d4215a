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
from flyweight.describe import find
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
    each runs what was run for it."""

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

    def run(self, *, strict: bool = False) -> ProvedSuite:
        """Raises the first error of a technique if `strict`, and always what is wrong with the
        model or the baseline.
        """
        outcomes: list[ProveOutcome] = []
        failures: list[ProveFailure] = []
        end = self.clock() + self.request.seconds
        techniques = self.request.techniques
        with TemporaryDirectory(prefix="flyweight-prove-") as folder:
            for i, technique in enumerate(techniques):
                seconds = max(0.0, end - self.clock()) / (len(techniques) - i)
                model, note = self._choose_model(technique, Path(folder))
                plan = self._make_plan(technique, model, seconds)
                try:
                    found = self._prove(technique, model, plan, Path(folder))
                    outcomes.append(replace(found, notes=(*note, *found.notes)))
                except FlyweightError as error:
                    if strict:
                        raise
                    skipped = isinstance(error, ConfigError)
                    failures.append(ProveFailure(technique, str(error), skipped))
        chosen = self.request.model or ""
        return ProvedSuite(chosen, Surroundings.here(), tuple(outcomes), tuple(failures))

    def _prove(
        self, technique: Technique, model: Path, plan: ProvePlan, folder: Path
    ) -> ProveOutcome:
        own = folder / technique.name
        own.mkdir()
        job = ProveJob(model, own, self.request.threads)
        return prove(technique, job, plan, self.open_side, self.listener, self.clock)

    def _make_plan(self, technique: Technique, model: Path, seconds: float) -> ProvePlan:
        """Within these seconds; as much work as the baseline did, where there is one."""
        plan, baseline = replace(self.request.plan, seconds=seconds), self.request.baseline
        if baseline is None:
            return plan
        baseline.check_model(technique.name, model.name, measure_size(model))
        baseline.check_metric(technique.name, plan.metric or technique.metric)
        return replace(plan, share=baseline.find(technique.name).share)

    def _choose_model(self, technique: Technique, folder: Path) -> tuple[Path, tuple[str, ...]]:
        """The user's model, else one that the workload fits, with a note of what that is."""
        name = technique.stand_in
        if self.request.model is not None or not name:
            return find(Settings.of(model=self.request.model)), ()
        if name not in self._stand_ins:
            self._stand_ins[name] = STAND_INS[name](folder)
        made = self._stand_ins[name]
        return made.path, (made.note,)
