"""What a search tries, of all changes: those that targets do not rule out, and types once they are
made.

Invariant: nothing is loaded, and no type is made that memory or latency rules out by what is
predicted of it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flyweight.bench.kernels import RunListener
from flyweight.errors import ConfigError
from flyweight.tune.files import read_candidate
from flyweight.tune.making import MadeFile, PlannedType, make_type
from flyweight.tune.predict import Predictor
from flyweight.tune.search import DEFAULTS
from flyweight.tune.trial import SettingsTrial


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """What is tried, the most promising first, and why others are not.  Changes are made to `base`:
    the defaults, or the first change that may run where `unfit` says why these may not.
    `unreachable` says which target no settings reach, where that is so.
    """

    singles: list[SettingsTrial]
    rejected: dict[SettingsTrial, str]
    base: SettingsTrial = DEFAULTS
    unfit: str = ""
    unreachable: str = ""


def choose_candidates(predictor: Predictor, changes: Sequence[SettingsTrial]) -> CandidateChoice:
    """Those that the targets do not rule out; where that is all, the ones nearest to them.  Raises
    `ConfigError` where memory or quality leaves nothing.
    """
    unfit = predictor.find_obstacle(DEFAULTS)
    base = _find_base(predictor, changes, unfit) if unfit else DEFAULTS
    whole = {one: base.join([one]) for one in changes}
    own = [one for one in changes if whole[one] != base]
    rejected = {one: why for one in own if (why := predictor.find_obstacle(whole[one]))}
    possible = [DEFAULTS, *(one for one in own if one not in rejected)]
    late = {one: found for one in possible if (found := predictor.find_shortfall(base.join([one])))}
    reachable = [one for one in possible if one not in late]
    if reachable:
        rejected |= {one: found.reason for one, found in late.items() if one != DEFAULTS}
        singles = [one for one in reachable if one != DEFAULTS]
        return CandidateChoice(singles, rejected, base, unfit)
    nearest = sorted((one for one in late if one != DEFAULTS), key=lambda one: late[one].ratio)
    closest = min(late.values(), key=lambda found: found.ratio)
    return CandidateChoice(nearest, rejected, base, unfit, closest.reason)


def make_types(
    predictor: Predictor,
    planned: Sequence[PlannedType],
    changes: Sequence[SettingsTrial],
    end: float,
    tell: RunListener,
) -> list[MadeFile]:
    """The files of the types that are worth trying, in order; none is begun after `end`, on the
    clock of `time.monotonic`.
    """
    files = predictor.files
    files |= {str(one.path): one.file for one in planned if not one.path.exists()}
    rejected = choose_candidates(predictor, changes).rejected if planned else {}
    made: list[MadeFile] = []
    for one in planned:
        path, there = str(one.path), one.path.exists()
        trial = SettingsTrial.of({"model": path})
        why = rejected.get(trial, "")
        if not there and not why and time.monotonic() >= end:
            why = "no time was left to make it"
        if not why:
            made.append(make_type(one, tell))
            files[path] = read_candidate(predictor.make_settings(trial))
        elif not there:
            files[path] = replace(files[path], obstacle=why)
    return made


def _find_base(predictor: Predictor, changes: Sequence[SettingsTrial], unfit: str) -> SettingsTrial:
    """The first change that may run.  Raises `ConfigError` where none may."""
    for one in changes:
        if not predictor.find_obstacle(one):
            return one
    raise ConfigError(f"no settings can meet the targets: {unfit}")
