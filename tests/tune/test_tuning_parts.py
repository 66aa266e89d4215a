"""Targets, loads, the evidence file, and the settings that are tried."""

import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flyweight.config import Settings
from flyweight.describe import describe, find
from flyweight.engine.engine import Engine
from flyweight.errors import ConfigError
from flyweight.outputs import RequestMetrics
from flyweight.plan.machine import Machine
from flyweight.plan.roofline import MachineLimits
from flyweight.text.absent import load_any_tokenizer
from flyweight.tune import tuner
from flyweight.tune.evidence import Evidence, draw_trials
from flyweight.tune.load import make_load
from flyweight.tune.measure import LoadRunner, make_figures
from flyweight.tune.predict import Predictor
from flyweight.tune.space import AXES, LoadShape, list_single_changes
from flyweight.tune.targets import Targets
from flyweight.tune.trial import LoadFigures, SettingsTrial
from flyweight.tune.tuner import describe_subject

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


def measure_once(path: Path, subject: dict[str, Any], *changes: dict[str, Any]) -> None:
    recall = Evidence(path, subject).remember(lambda one, size: FIGURES)
    for one in changes:
        recall(SettingsTrial.of(one), 1)


@pytest.mark.parametrize("damage", ['{"key": "', "\n{}\n[1]\n7\n", "\xff", "}"])
def test_a_damaged_line_of_evidence_loses_itself_alone(tmp_path: Path, damage: str) -> None:
    path, subject = tmp_path / "e.jsonl", {"model": "a"}
    measure_once(path, subject, {}, {"threads": 1})
    with path.open("a", encoding="latin-1") as file:
        file.write(damage)
    before = path.read_bytes()
    assert Evidence(path, subject).count() == 2
    measure_once(path, subject, {}, {"threads": 2})
    assert Evidence(path, subject).count() == 3 and path.read_bytes().startswith(before)


def test_a_line_that_was_cut_is_measured_again(tmp_path: Path) -> None:
    path, subject = tmp_path / "e.jsonl", {"model": "a"}
    measure_once(path, subject, {}, {"threads": 1})
    path.write_bytes(path.read_bytes()[:-20])
    assert Evidence(path, subject).count() == 1
    measure_once(path, subject, {"threads": 1})
    assert Evidence(path, subject).count() == 2


def test_one_file_holds_the_evidence_of_several_subjects(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    measure_once(path, {"load": "chat"}, {}, {"threads": 1})
    measure_once(path, {"load": "rag"}, {})
    assert [Evidence(path, {"load": one}).count() for one in ("chat", "rag", "bulk")] == [2, 1, 0]
    again = path.read_bytes()
    assert Evidence(path, {"load": "chat"}).count() == 2
    assert path.read_bytes() == again, "what a subject is, is said once"


def test_the_subject_has_all_that_changes_a_measurement(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Machine(2, 1 << 34, 1 << 34)
    load = make_load("bulk", 1, 256, 64)
    other = tmp_path / "other"
    shutil.copytree(full, other)
    found = describe(find(Settings.of(model=full)), {}, load_any_tokenizer)

    def describe_now(**changes: Any) -> dict[str, Any]:
        given = {"load": load, "here": here, "fixed": {"max_model_len": 64}, "others": [str(other)]}
        return describe_subject(found, **(given | changes))

    usual = describe_now()
    assert usual == describe_now()
    for change in (
        {"load": replace(load, shared=9)},
        {"fixed": {"max_model_len": 64, "memory_limit": 1 << 30}},
        {"here": replace(here, cores=3)},
        {"others": []},
    ):
        assert describe_now(**change) != usual
    monkeypatch.setattr(tuner, "__version__", "0")
    assert describe_now() != usual
    monkeypatch.undo()
    monkeypatch.setattr(tuner, "find_isa", lambda given: "another")
    assert describe_now() != usual
    monkeypatch.undo()
    weights = next(other.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert describe_now() != usual


def test_traces_of_one_name_are_other_loads(tmp_path: Path) -> None:
    found = []
    for tokens in (30, 31):
        path = tmp_path / str(tokens) / "t.jsonl"
        path.parent.mkdir()
        row = {"timestamp": 0, "input_length": tokens, "output_length": 5, "hash_ids": []}
        path.write_text(json.dumps(row))
        found.append(make_load(str(path), None, 1000, 2048))
    assert found[0].name == found[1].name and found[0].fingerprint != found[1].fingerprint


def test_labels_are_short() -> None:
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
    one = SettingsTrial.of(
        {"speculative_config": drafts, "max_num_seqs": 8, "model": f"/somewhere/{'m' * 40}.gguf"}
    )
    assert one.label == f"seqs=8, {'m' * 27}…, ngram 3" and SettingsTrial().label == "defaults"
    seen = {one: FIGURES, SettingsTrial(): FIGURES}
    assert "{" not in draw_trials(seen).split("</style>")[1]


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
