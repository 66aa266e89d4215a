"""Tunes the settings of a model's engine for a load, on this machine.

Invariant: the defaults are the answer unless something measured is better; targets that nothing
meets give what came nearest, and the name of what binds.
"""

import time
from collections.abc import Sequence
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
class CandidateChoice:
    """What is tried, the most promising first, and why others are not; `unreachable` says which
    target no settings reach, where that is so.
    """

    singles: list[SettingsTrial]
    rejected: dict[SettingsTrial, str]
    unreachable: str = ""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome.  `seen` has what the finalists came to, `rejected` why others were not tried,
    `binding` which limit of the machine binds by missed target, `unreachable` which target
    no settings reach.
    """

    chosen: SettingsTrial
    seen: dict[SettingsTrial, LoadFigures]
    rejected: dict[SettingsTrial, str]
    load: TuningLoad
    binding: dict[str, str]
    measured: int
    unreachable: str = ""

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
    choice = choose_candidates(predictor, [*list_single_changes(shape)])
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
    chosen = search.run(choice.singles)
    seen = collect_finals(search)
    missed = request.targets.find_excess(seen[chosen])
    binding = predictor.compute_floor(chosen).binding if missed else {}
    binding = {name: binding[name] for name in missed}
    return Tuning(
        chosen, seen, choice.rejected, load, binding, kept.count(), choice.unreachable
    )  # fmt: skip


def choose_candidates(predictor: Predictor, changes: Sequence[SettingsTrial]) -> CandidateChoice:
    """Those that the targets do not rule out; where that is all, the ones nearest to them.  Raises
    `ConfigError` where memory or quality leaves nothing.
    """
    rejected = {one: why for one in [DEFAULTS, *changes] if (why := predictor.find_obstacle(one))}
    possible = [one for one in changes if one not in rejected]
    if DEFAULTS in rejected and not possible:
        raise ConfigError(f"no settings can meet the targets: {rejected[DEFAULTS]}")
    late = {
        one: found
        for one in [DEFAULTS, *possible]
        if one not in rejected and (found := predictor.find_shortfall(one))
    }
    reachable = [one for one in possible if one not in late]
    if reachable or DEFAULTS not in late | rejected:
        untried = {one: found.reason for one, found in late.items() if one != DEFAULTS}
        return CandidateChoice(reachable, rejected | untried)
    nearest = sorted((one for one in late if one != DEFAULTS), key=lambda one: late[one].ratio)
    closest = min(late.values(), key=lambda found: found.ratio)
    return CandidateChoice(nearest, rejected, closest.reason)


def collect_finals(search: Search) -> dict[SettingsTrial, LoadFigures]:
    """The middle figures of each finalist."""
    finals = [one.seen for one in search.rounds if one.stage == "finalists"]
    return {
        one: LoadFigures.combine(seen[one] for seen in finals if one in seen) for one in finals[0]
    }
