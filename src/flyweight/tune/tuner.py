"""Tunes the settings of a model's engine for a load, on this machine.

Invariant: the defaults are the answer unless something measured is better; where memory or quality
rules them out, nothing starts with them, and the first change that may run takes their place.
Targets that nothing meets give what came nearest, and the name of what binds.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyweight import __version__
from flyweight.bench.facts import read_cpu_name
from flyweight.bench.kernels import RunListener
from flyweight.bench.ours import find_isa
from flyweight.config import Settings
from flyweight.describe import ModelDescription, describe, find
from flyweight.errors import FlyweightError
from flyweight.plan.machine import Machine, read_machine
from flyweight.text.absent import load_any_tokenizer
from flyweight.tune.candidates import CandidateChoice, choose_candidates, make_types
from flyweight.tune.evidence import Evidence
from flyweight.tune.load import TuningLoad, make_load
from flyweight.tune.making import MadeFile, OtherFiles, plan_types
from flyweight.tune.measure import LoadRunner
from flyweight.tune.predict import Predictor
from flyweight.tune.search import Search
from flyweight.tune.space import LoadShape, list_single_changes
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial

MAKING = 0.5  # share of the time after which no further type is made


@dataclass(frozen=True, slots=True)
class TuningJob:
    """One tuning: `others` are files of the same model and types to make of it, to choose from."""

    model: str
    targets: Targets
    workload: str = "chat"
    users: int | None = None
    seconds: float = 900.0
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcome.  `seen` has what the finalists came to, `choice` what was tried and why others
    were not, `made` the files of types, `binding` which limit of the machine binds by missed
    target, `bounds` the targets that a server of what was chosen keeps.
    """

    chosen: SettingsTrial
    seen: dict[SettingsTrial, LoadFigures]
    choice: CandidateChoice
    load: TuningLoad
    binding: dict[str, str]
    bounds: dict[str, Any]
    measured: int
    made: tuple[MadeFile, ...] = ()

    @property
    def figures(self) -> LoadFigures:
        return self.seen[self.chosen]


def tune(request: TuningJob, evidence: Path, listener: RunListener) -> Tuning:
    """Searches for `request.seconds`, in which types are made too; measurements that `evidence` has
    are not repeated.
    """
    begun = time.monotonic()
    here = read_machine()
    others = OtherFiles.parse(request.others)
    found = describe(find(Settings.of(model=request.model), listener), {}, load_any_tokenizer)
    load = make_load(request.workload, request.users, found.spec.vocab, found.spec.context)
    fixed = {"max_model_len": min(found.spec.context, load.longest + 8)}
    predictor = Predictor(request.model, load, request.targets, here, fixed)
    planned = plan_types(request.model, found, others.types, evidence.parent)
    shape = LoadShape(
        load.users, load.prompt, load.output, here.cores, request.targets.max_kld is not None,
        (*others.files, *(str(one.path) for one in planned)),
    )  # fmt: skip
    changes = [*list_single_changes(shape)]
    made = make_types(predictor, planned, changes, begun + MAKING * request.seconds, listener)
    choice = choose_candidates(predictor, changes)
    listener.note(f"tuning {request.model} for {request.seconds / 60:g} minutes")
    fixed = fixed | list_limits(request.targets)
    kept = Evidence(evidence, describe_subject(found, load, here, fixed, others.files))
    runner = LoadRunner(request.model, load, fixed)
    search = Search(
        request.targets,
        kept.remember(runner.measure),
        time.monotonic,
        begun + request.seconds - time.monotonic(),
        listener.round,
        choice.base,
        lambda one: not predictor.find_obstacle(one),
    )
    chosen = search.run(choice.singles)
    seen = collect_finals(search)
    missed = request.targets.find_excess(seen[chosen])
    floor = predictor.compute_floor(chosen).binding if missed else {}
    binding = {name: floor[name] for name in missed}
    bounds = predictor.list_bounds(chosen)
    return Tuning(chosen, seen, choice, load, binding, bounds, kept.count(), tuple(made))


def describe_subject(
    found: ModelDescription,
    load: TuningLoad,
    here: Machine,
    fixed: Mapping[str, Any],
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that measurements are of; `fixed` are settings of all of them."""
    given = Settings.of(model=found.checkpoint.path)
    return {
        "model": str(found.checkpoint.path), "fingerprint": found.checkpoint.fingerprint,
        "load": load.name, "users": load.users, "requests": load.fingerprint,
        "settings": dict(fixed), "others": {one: find_fingerprint(one) for one in others},
        "machine": read_cpu_name(), "cores": here.cores, "isa": find_isa(given),
        "flyweight": __version__,
    }  # fmt: skip


def find_fingerprint(model: str) -> str:
    """Of a file that is there, without its tensors; "" of one that cannot be read."""
    try:
        checkpoint = describe(find(Settings.of(model=model)), {}, load_any_tokenizer).checkpoint
    except FlyweightError:
        return ""  # the choice of candidates says why
    try:
        return checkpoint.fingerprint
    finally:
        checkpoint.close()  # its pages would count as held


def list_limits(targets: Targets) -> dict[str, Any]:
    return {"memory_limit": targets.memory} if targets.memory else {}


def collect_finals(search: Search) -> dict[SettingsTrial, LoadFigures]:
    """The middle figures of each finalist."""
    finals = [one.seen for one in search.rounds if one.stage == "finalists"]
    return {
        one: LoadFigures.combine(seen[one] for seen in finals if one in seen) for one in finals[0]
    }
