"""Tunes the settings of a model's engine for a load, on this machine.

Invariant: the defaults are the answer unless something measured is better; targets that nothing
meets give what came nearest, and the name of what binds.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from flyweight.bench.facts import read_cpu_name
from flyweight.bench.kernels import RunListener
from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.errors import ConfigError
from flyweight.plan.machine import read_machine
from flyweight.text.absent import load_any_tokenizer
from flyweight.tune.evidence import Evidence
from flyweight.tune.load import TuningLoad, make_load
from flyweight.tune.measure import LoadRunner
from flyweight.tune.predict import Predictor
from flyweight.tune.search import DEFAULTS, Search
from flyweight.tune.space import LoadShape, list_single_changes
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial


@dataclass(frozen=True, slots=True)
class TuningJob:
    """One tuning: `files` are others of the same model, to choose from."""

    model: str
    targets: Targets
    workload: str = "chat"
    users: int | None = None
    seconds: float = 900.0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome.  `seen` has what the finalists came to, `rejected` why others were not tried,
    `binding` which limit of the machine binds where a target is missed.
    """

    chosen: SettingsTrial
    seen: dict[SettingsTrial, LoadFigures]
    rejected: dict[SettingsTrial, str]
    load: TuningLoad
    binding: str
    measured: int

    @property
    def figures(self) -> LoadFigures:
        return self.seen[self.chosen]


def tune(request: TuningJob, evidence: Path, listener: RunListener) -> Tuning:
    """Searches for `request.seconds`; measurements that `evidence` has are not repeated."""
    here = read_machine()
    settings = Settings.of(model=request.model)
    found = describe(find(settings, listener), {}, load_any_tokenizer)
    load = make_load(request.workload, request.users, found.spec.vocab, found.spec.context)
    fixed = {"max_model_len": min(found.spec.context, load.longest + 8)}
    predictor = Predictor(request.model, load, request.targets, here, fixed)
    shape = LoadShape(
        load.users, load.prompt, load.output, here.cores,
        request.targets.max_kld is not None, request.files,
    )  # fmt: skip
    rejected = {one: why for one in [DEFAULTS, *list_single_changes(shape)]
                if (why := predictor.find_reason(one))}  # fmt: skip
    singles = [one for one in list_single_changes(shape) if one not in rejected]
    if DEFAULTS in rejected and not singles:
        raise ConfigError(f"no settings can meet the targets: {rejected[DEFAULTS]}")
    subject = {
        "model": str(found.checkpoint.path), "fingerprint": found.checkpoint.fingerprint,
        "load": load.name, "users": load.users, "longest": load.longest,
        "machine": read_cpu_name(), "cores": here.cores,
    }  # fmt: skip
    kept = Evidence(evidence, subject)
    limit = {"memory_limit": request.targets.memory} if request.targets.memory else {}
    runner = LoadRunner(request.model, load, fixed | limit)
    search = Search(
        request.targets,
        kept.remember(runner.measure),
        time.monotonic,
        request.seconds,
        listener.round,
    )
    chosen = search.run(singles)
    seen = collect_finals(search)
    missed = request.targets.find_excess(seen[chosen])
    binding = predictor.compute_floor(chosen).binding if missed else ""
    return Tuning(chosen, seen, rejected, load, binding, kept.count())


def collect_finals(search: Search) -> dict[SettingsTrial, LoadFigures]:
    """The middle figures of each finalist."""
    finals = [one.seen for one in search.rounds if one.stage == "finalists"]
    return {
        one: LoadFigures.combine(seen[one] for seen in finals if one in seen) for one in finals[0]
    }
