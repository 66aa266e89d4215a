"""The search against all combinations of a small space; the clock moves by what is measured."""

import itertools
import math
import random

import pytest

from flyweight.tune.search import DEFAULTS, Search, combine
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial

VALUES = {"max_num_seqs": (2, 8, 32), "draft_tokens": (3, 7), "block_size": (16, 64)}
SINGLES = [SettingsTrial.of({name: value}) for name, values in VALUES.items() for value in values]


class FakeMachine:
    """Speeds that are products of effects by setting, with noise and one interaction."""

    def __init__(self, effects: dict[tuple[str, int], float], noise: float, seed: int) -> None:
        self.effects, self.noise, self.draw = effects, noise, random.Random(seed)
        self.now, self.calls = 0.0, 0

    def compute_speed(self, one: SettingsTrial) -> float:
        speed = 100 * math.prod(self.effects.get(change, 1.0) for change in one.changes)
        both = dict(one.changes)
        if both.get("max_num_seqs") == 32 and both.get("draft_tokens"):
            speed *= 0.97  # drafts pay less in large batches
        return speed

    def measure(self, one: SettingsTrial, size: int) -> LoadFigures:
        self.now += size
        self.calls += 1
        speed = self.compute_speed(one) * math.exp(self.draw.gauss(0, self.noise / math.sqrt(size)))
        return LoadFigures(speed, ttft=50 / speed, itl=1 / speed, latency=100 / speed, tokens=size)


def search(machine: FakeMachine, seconds: float = 150, **targets: float) -> SettingsTrial:
    asked = Targets(**targets)  # type: ignore[arg-type]
    return Search(asked, machine.measure, lambda: machine.now, seconds).run(SINGLES)


def list_grid() -> list[SettingsTrial]:
    choices = [[None, *values] for values in VALUES.values()]
    return [
        SettingsTrial.of({k: v for k, v in zip(VALUES, chosen, strict=True) if v is not None})
        for chosen in itertools.product(*choices)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_near_the_best_of_the_grid(seed: int) -> None:
    draw = random.Random(seed)
    effects = {
        (name, value): math.exp(draw.uniform(-0.3, 0.4))
        for name, values in VALUES.items()
        for value in values
    }
    machine = FakeMachine(effects, 0.02, seed)
    chosen = search(machine)
    best = max(map(machine.compute_speed, list_grid()))
    assert machine.compute_speed(chosen) >= 0.95 * best
    assert machine.compute_speed(chosen) >= machine.compute_speed(DEFAULTS)
    assert machine.now <= 150 + 4 * 4 * 9, "the last stage may end late, by its least rounds"


@pytest.mark.parametrize("seed", range(10))
def test_the_defaults_stay_where_nothing_is_better(seed: int) -> None:
    effects = {(name, value): 0.9 for name, values in VALUES.items() for value in values}
    assert search(FakeMachine(effects, 0.02, seed)) == DEFAULTS


def test_two_targets_give_two_choices() -> None:
    """Many sequences give throughput; few give short waits between tokens."""

    def measure(one: SettingsTrial, size: int) -> LoadFigures:
        seqs = dict(one.changes).get("max_num_seqs", 16)
        return LoadFigures(100 * seqs**0.5, 1.0, 0.01 * seqs, 5.0 / seqs, size)

    found = {}
    for itl in (0.5, 0.05):
        ticks = itertools.count()
        hunt = Search(Targets(itl=itl), measure, lambda ticks=ticks: float(next(ticks)), 500)
        found[itl] = dict(hunt.run(SINGLES).changes)
    assert found == {0.5: {"max_num_seqs": 32}, 0.05: {"max_num_seqs": 2}}


def test_an_unreachable_target_gives_the_nearest() -> None:
    effects = {("max_num_seqs", 2): 1.5, ("max_num_seqs", 8): 1.2}
    machine = FakeMachine(effects, 0.0, 0)
    chosen = search(machine, itl=1e-6)
    assert dict(chosen.changes) == {"max_num_seqs": 2}


def test_the_defaults_are_measured_in_every_final_round() -> None:
    machine = FakeMachine({("block_size", 64): 1.3}, 0.0, 0)
    hunt = Search(Targets(), machine.measure, lambda: machine.now, 100)
    assert hunt.run(SINGLES) == SettingsTrial.of({"block_size": 64})
    finals = [one for one in hunt.rounds if one.stage == "finalists"]
    assert len(finals) >= 3 and all(DEFAULTS in one.seen for one in finals)
    assert len({next(iter(one.seen)) for one in finals}) > 1, "the first place changes"


def test_a_short_time_still_compares_with_the_defaults() -> None:
    machine = FakeMachine({("block_size", 64): 1.3}, 0.0, 0)
    hunt = Search(Targets(), machine.measure, lambda: machine.now, 1)
    hunt.run(SINGLES)
    assert sum(one.stage == "finalists" for one in hunt.rounds) == 3


def test_combinations_are_ranked_by_the_sum_of_gains() -> None:
    gains = {
        SettingsTrial.of({"block_size": 64}): 0.2,
        SettingsTrial.of({"block_size": 16}): 0.1,
        SettingsTrial.of({"draft_tokens": 3}): 0.3,
        SettingsTrial.of({"threads": 1}): -0.5,
    }
    found = [one.name for one in combine(gains)]
    assert found == [
        "block_size=64, draft_tokens=3",
        "block_size=16, draft_tokens=3",
        "draft_tokens=3",
        "block_size=64",
        "block_size=16",
        "defaults",
    ]
