"""What is tried where targets rule out settings, types or the defaults."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from flyweight.bench.kernels import RunListener
from flyweight.config import Settings
from flyweight.describe import describe
from flyweight.errors import ConfigError
from flyweight.passport import Quality
from flyweight.plan.machine import Machine
from flyweight.tune.candidates import choose_candidates, make_types
from flyweight.tune.files import view_candidate
from flyweight.tune.load import make_load
from flyweight.tune.making import plan_types
from flyweight.tune.predict import Predictor, Shortfall
from flyweight.tune.search import DEFAULTS, Search
from flyweight.tune.space import LoadShape, list_single_changes
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial

SMALL = SettingsTrial.of({"model": "small"})
LARGE = SettingsTrial.of({"model": "large"})
BLOCKS = SettingsTrial.of({"block_size": 64})
CHANGES = [LARGE, SMALL, BLOCKS]
PLACE = Machine(2, 1 << 40, 1 << 40)


class TightPredictor(Predictor):
    """Only the small file fits; with `late`, it misses a target too."""

    def __init__(self, late: bool = False) -> None:
        super().__init__("own", make_load("bulk", 2, 512, 512), Targets(), PLACE, {})
        self.late = late

    def find_obstacle(self, candidate: SettingsTrial) -> str:
        model = dict(candidate.changes).get("model", "own")
        return "" if model == "small" else f"{model} does not fit"

    def find_shortfall(self, candidate: SettingsTrial) -> Shortfall | None:
        return Shortfall(2.0, "itl of at least 2 s") if self.late else None


def test_what_fits_takes_the_place_of_the_defaults() -> None:
    choice = choose_candidates(TightPredictor(), CHANGES)
    assert choice.base == SMALL and choice.unfit == "own does not fit"
    assert choice.singles == [BLOCKS], "alone it would not fit"
    assert choice.rejected == {LARGE: "large does not fit"} and not choice.unreachable


def test_late_settings_are_tried_from_there_too() -> None:
    choice = choose_candidates(TightPredictor(late=True), CHANGES)
    assert choice.base == SMALL and choice.singles == [BLOCKS]
    assert choice.unreachable == "itl of at least 2 s"


def test_nothing_that_fits_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no settings can meet the targets: own does not fit"):
        choose_candidates(TightPredictor(), [LARGE, BLOCKS])


def test_what_does_not_fit_is_never_measured() -> None:
    """Two changes gain by themselves, and do not fit together."""
    slow = SettingsTrial.of({"threads": 1})
    both = SMALL.join([BLOCKS, slow])
    seen: set[SettingsTrial] = set()

    def measure(one: SettingsTrial, size: int) -> LoadFigures:
        seen.add(one)
        speed = 100.0 + 10 * len(one.changes)
        return LoadFigures(speed, 1.0, 0.01, 1.0, size)

    ticks = iter(range(10**6))
    hunt = Search(
        Targets(), measure, lambda: float(next(ticks)), 100.0, base=SMALL,
        fits=lambda one: one != both,
    )  # fmt: skip
    chosen = hunt.run([BLOCKS, slow])
    assert chosen in (SMALL.join([BLOCKS]), SMALL.join([slow]))
    assert DEFAULTS not in seen and both not in seen and SMALL in seen
    assert all(SMALL in one.seen for one in hunt.rounds if one.stage == "finalists")


def tune_tiny(
    full: Path, folder: Path, targets: Targets, left: float
) -> tuple[Predictor, list[str]]:
    """A predictor after the types of a tiny model were made, and their names."""
    found = describe(full)
    load = make_load("chat", 2, found.spec.vocab, found.spec.context)
    predictor = Predictor(str(full), load, targets, PLACE, {})
    planned = plan_types(str(full), found, ["Q8_0", "Q4_0"], folder)
    shape = LoadShape(2, load.prompt, load.output, 2, False, tuple(str(x.path) for x in planned))
    changes = [*list_single_changes(shape)]
    end = time.monotonic() + left
    made = make_types(predictor, planned, changes, end, RunListener())
    return predictor, [one.name for one in made]


def test_types_above_the_memory_are_not_made(full: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no settings can meet the targets"):
        tune_tiny(full, tmp_path, Targets(memory=1 << 20), 100)
    assert not any(tmp_path.iterdir())


def test_types_above_a_latency_are_not_made(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_shortfall(self: Predictor, one: SettingsTrial) -> Shortfall | None:
        return Shortfall(2.0, "late") if "model" in dict(one.changes) else None

    monkeypatch.setattr(Predictor, "find_shortfall", find_shortfall)
    _, made = tune_tiny(full, tmp_path, Targets(itl=1.0), 100)
    assert made == [] and not any(tmp_path.iterdir())


def test_no_type_is_begun_when_the_time_is_up(full: Path, tmp_path: Path) -> None:
    predictor, made = tune_tiny(full, tmp_path, Targets(), -1)
    assert made == [] and not any(tmp_path.iterdir())
    trial = SettingsTrial.of({"model": str(tmp_path / "full-Q4_0.gguf")})
    assert predictor.find_obstacle(trial) == "no time was left to make it"


def test_types_that_lost_too_much_are_not_tried(
    full: Path, tmp_path: Path, short_evaluation: None
) -> None:
    predictor, made = tune_tiny(full, tmp_path, Targets(max_kld=1e-9), 100)
    assert made == ["Q8_0", "Q4_0"]
    trial = SettingsTrial.of({"model": str(tmp_path / "full-Q4_0.gguf")})
    assert "is below the mean KLD of" in predictor.find_obstacle(trial)
    assert predictor.find_obstacle(DEFAULTS) == "", "losses are measured from it"
    assert predictor.list_bounds(DEFAULTS) == {}
    assert predictor.list_bounds(trial) == {"max_kld": 1e-9}


def test_coded_kv_needs_a_passport_of_any_model(full: Path) -> None:
    found = view_candidate(describe(full))
    assert found.full
    found.check_loss(Settings.of(max_kld=0.1))
    with pytest.raises(ConfigError, match="no passport"):
        found.check_loss(Settings.of(max_kld=0.1, kv_cache_dtype="int8"))
    damaged = replace(found, quality=Quality(problem="the passport is damaged"))
    with pytest.raises(ConfigError, match="damaged"):
        damaged.check_loss(Settings.of(max_kld=0.1))
