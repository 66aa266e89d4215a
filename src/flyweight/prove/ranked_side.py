"""A side that is an engine over several ranks, or over none, for comparison; both have the same
threads in all.

Invariant: what `plan parallel` predicts is computed before anything is measured, by the side `on`,
and is among its notes.  Memory is that of all ranks together, and they are not other processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flyweight.bench.facts import OtherProcesses
from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import ConfigError
from flyweight.models.shards import check_size
from flyweight.models.stages import check_stages
from flyweight.parallel.pipeline import PipelineStage
from flyweight.parallel.processes import LeadingRunner
from flyweight.parallel.sharding import import_collectives
from flyweight.plan.machine import read_machine
from flyweight.planning.calibration import LocalEngine
from flyweight.planning.outline import outline_model
from flyweight.planning.rank_plan import RankPlan, plan_ranks
from flyweight.planning.rank_report import judge_nodes
from flyweight.planning.speed import SpeedQuestion
from flyweight.planning.units import write_seconds
from flyweight.prove.engine_side import EngineSide, EngineWorkload
from flyweight.prove.peak import measure_peak
from flyweight.prove.replay import TimedPrompt
from flyweight.prove.technique import Measurement, ProveJob

RANKS = 2
PROC = Path("/proc")
EXCHANGE = "exchange, % of the time"
BUBBLE, FORMULA = "bubble of the first stage, %", "(p - 1) / (m + p - 1), %"


@dataclass(frozen=True, slots=True)
class RankWorkload:
    """A workload, and what is predicted of it: the answer named `key` to a question."""

    work: EngineWorkload
    question: SpeedQuestion
    key: str


class RankedSide(EngineSide):
    """`settings` of the side `on` divide the model over `RANKS` processes."""

    def __init__(
        self, job: ProveJob, workload: RankWorkload, side: str, settings: Mapping[str, Any]
    ) -> None:
        if side == "on" or find_spec("torch") is None:  # `off` holds no torch in memory
            import_collectives()
        threads = job.threads or read_machine().cores
        if threads < RANKS:
            raise ConfigError(
                f"are fewer than the {RANKS} ranks", "threads", value=threads,
                allowed=f"{RANKS} or more",
            )  # fmt: skip
        threads -= threads % RANKS  # so that ranks have as many in all as one process
        chosen = {**(settings if side == "on" else {}), "threads": threads}
        predicted = predict(job, workload, chosen) if side == "on" else ()
        super().__init__(job, workload.work, chosen)
        self.notes = (*predicted, *self.notes)
        self._pids = [child.pid for child in self.loaded.ranks.children]

    def replay(self, prompts: Sequence[TimedPrompt]) -> Measurement:
        runner: Any = self.loaded.engine.runner
        group = runner.group if isinstance(runner, LeadingRunner) else None
        model = runner.runner.model if group is not None else None
        if isinstance(model, PipelineStage):
            model.times.clear()
        before, others = group.seconds if group else 0.0, OtherProcesses(self._pids)
        measured = super().replay(prompts)
        cores, spent = others.measure_cores(), group.seconds - before if group else 0.0
        figures = {EXCHANGE: 100 * spent / measured.seconds, **read_bubble(model)}
        return replace(measured, figures=figures, others=cores, peak=self._measure_peak())

    def close(self) -> None:
        """Ends the ranks, and frees the engine."""
        self.loaded.engine.close()
        super().close()

    def _measure_peak(self) -> int:
        return measure_peak() + sum(measure_peak(PROC / str(pid)) for pid in self._pids)


def read_bubble(model: object) -> dict[str, float]:
    """What the first stage waited of its steps, and by the formula; 0 where there are no stages."""
    if not isinstance(model, PipelineStage):
        return {BUBBLE: 0.0, FORMULA: 0.0}
    return {BUBBLE: 100 * model.times.measured, FORMULA: 100 * model.times.expected}


def predict(job: ProveJob, workload: RankWorkload, chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """What `plan parallel` says before anything is measured, or was said when the side was opened
    before.
    """
    file = job.folder / "prediction"
    if not file.exists():
        settings = Settings.of(model=job.model, **chosen)
        outline = outline_model(settings, SilentListener())
        way = settings.tensor_parallel_size, settings.pipeline_parallel_size
        check_size(outline.spec, outline.kinds, way[0])
        check_stages(outline.spec, way[1])
        question = fit_question(workload.question, outline.spec.context)
        plan = plan_ranks(outline, LocalEngine.of(settings, outline), [way], question)
        file.write_text("\n".join(describe_prediction(plan, workload.key)), encoding="utf-8")
    return tuple(file.read_text(encoding="utf-8").splitlines())


def fit_question(question: SpeedQuestion, context: int) -> SpeedQuestion:
    """With a prompt that leaves room for a token, as requests are cut."""
    prompt, seen = min(question.prompt, context - 1), min(question.context, context)
    return replace(question, prompt=prompt, context=seen)


def describe_prediction(plan: RankPlan, key: str) -> list[str]:
    (answer,) = (one for one in plan.answers if one.work.key == key)
    (_, alone), (_, cost) = answer.costs
    return [
        f"predicted by `flyweight plan parallel` before it was measured: {answer.speeds[1]:.2f}x; "
        f"{answer.work.name} takes at least {write_seconds(alone.seconds)} in one process, and "
        f"{write_seconds(cost.seconds)} divided, {write_seconds(cost.exchange)} of it exchange",
        judge_nodes(plan),
    ]
