"""Targets, loads, the evidence file, and the settings that are tried."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from flyweight.config import Settings
from flyweight.engine.engine import Engine
from flyweight.errors import ConfigError
from flyweight.outputs import RequestMetrics
from flyweight.plan.machine import Machine
from flyweight.plan.roofline import MachineLimits
from flyweight.tune.evidence import Evidence
from flyweight.tune.load import make_load
from flyweight.tune.measure import LoadRunner, make_figures
from flyweight.tune.predict import Predictor
from flyweight.tune.space import AXES, LoadShape, list_single_changes
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial

FIGURES = LoadFigures(throughput=100.0, ttft=0.5, itl=0.02, latency=2.0, tokens=10)


def test_a_missed_target_outweighs_the_objective() -> None:
    targets = Targets(ttft=0.4)
    slow = LoadFigures(1000.0, 0.5, 0.02, 2.0, 10)
    quick = LoadFigures(100.0, 0.3, 0.02, 2.0, 10)
    assert targets.find_excess(slow) == {"ttft": pytest.approx(1.25)}
    assert targets.score(quick) > targets.score(slow)
    assert targets.find_excess(quick) == {}


def test_figures_of_a_load() -> None:
    """Ten requests of 11 tokens: tenths of a second to the first, ten gaps each."""
    seen = [RequestMetrics(ttft=0.1 * (i + 1), total=0.1 * (i + 1) + 1) for i in range(10)]
    found = make_figures(seen, [11] * 10, 2.0)
    assert found.throughput == 55.0 and found.tokens == 110
    assert found.ttft == pytest.approx(1.0) and found.itl == pytest.approx(0.1)
    assert found.latency == pytest.approx(1.55)


def test_loads_fit_the_context_and_repeat() -> None:
    load = make_load("rag", None, 512, 512)
    assert load.longest <= 512 - 8 and "1500 + 128" in load.scaled
    first, again = load.make_requests(1), load.make_requests(2)
    assert again[: len(first)] == first and len(again) == 2 * len(first)
    assert len({one.ids for one in again}) == len(again)
    shared = load.shared
    assert shared and len({one.ids[:shared] for one in again}) == 1
    assert make_load("chat", 3, 512, 4096).scaled == ""


def test_traces_keep_what_requests_share(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 9, "input_length": 700, "output_length": 5, "hash_ids": [1, 3]},
        {"timestamp": 9, "input_length": 7000, "output_length": 5, "hash_ids": [1]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    load = make_load(str(path), None, 1000, 2048)
    one, other = load.make_requests(1)[:2]
    assert sorted(len(x.ids) for x in (one, other)) == [600, 700]
    assert one.ids[:512] == other.ids[:512] and one.ids[512:] != other.ids[512:600]
    assert load.scaled.startswith("1 of 3")


@pytest.mark.parametrize(("name", "word"), [("caht", "chat"), ("missing.jsonl", "is not a file")])
def test_bad_workloads(name: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make_load(name, None, 512, 512)


def test_every_axis_makes_settings_that_exist() -> None:
    load = LoadShape(users=64, prompt=100, output=10, cores=4, quality_bound=True)
    tried = [dict(one.changes) for one in list_single_changes(load)]
    for changes in tried:
        Settings.of(**changes)
    assert {name for changes in tried for name in changes} == set(AXES) - {"model"}


def test_kv_types_need_a_bound_of_quality() -> None:
    load = LoadShape(users=64, prompt=100, output=10, cores=4)
    assert all("kv_cache_dtype" not in dict(one.changes) for one in list_single_changes(load))


def test_evidence_is_used_again_for_the_same_subject(tmp_path: Path) -> None:
    path, calls = tmp_path / "e.jsonl", []

    def measure(one: SettingsTrial, size: int) -> LoadFigures:
        calls.append((one, size))
        return FIGURES

    one = SettingsTrial.of({"threads": 1})
    first = Evidence(path, {"model": "a"}).remember(measure)
    first(one, 1), first(one, 1), first(one, 2)
    again = Evidence(path, {"model": "a"})
    assert again.count() == 3
    recall = again.remember(measure)
    assert recall(one, 1) == FIGURES and len(calls) == 3
    recall(one, 1), recall(one, 1)
    assert len(calls) == 4, "the third of this size is measured"
    assert Evidence(path, {"model": "b"}).count() == 0


def test_what_binds_is_named_for_each_target() -> None:
    """Reading takes no time in the first machine, multiplying none in the second; the third reads
    the weights for longer than it multiplies for a token, and for less than for a prompt.
    """
    for read, flops, bound in [
        (1e15, 1e9, {"itl": "arithmetic", "ttft": "arithmetic"}),
        (1e6, 1e15, {"itl": "reading memory", "ttft": "reading memory"}),
        (1e9, 3e10, {"itl": "reading memory", "ttft": "arithmetic"}),
    ]:
        load = make_load("bulk", 1, 512, 512)
        predictor = Predictor("stories", load, Targets(), Machine(2, 1 << 34, 1 << 34), {})
        predictor.__dict__["limits"] = MachineLimits(read, flops, flops, flops)
        assert predictor.compute_floor(SettingsTrial()).binding == bound


def test_an_engine_is_gone_when_its_figures_are_there(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds would count in the memory plan of the next candidate."""
    seen: list[weakref.ref[Engine]] = []
    start = Engine.__init__

    def watch(self: Engine, *given: Any, **named: Any) -> None:
        seen.append(weakref.ref(self))
        start(self, *given, **named)

    monkeypatch.setattr(Engine, "__init__", watch)
    load = make_load("bulk", 1, 256, 64)
    runner = LoadRunner(str(full), load, {"max_model_len": 64, "memory_limit": "8GiB"})
    assert runner.measure(SettingsTrial(), 1).throughput > 0
    assert seen and all(one() is None for one in seen)
