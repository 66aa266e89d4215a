"""What is kept of a run, what is compared with it, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_sides import JOB, FakeClock, FakeSide, cycle_times, make_technique

from flyweight.bench.facts import Surroundings
from flyweight.bench.limits import find_best
from flyweight.errors import ConfigError
from flyweight.plan.roofline import MachineLimits
from flyweight.prove.baseline import (
    Baseline,
    ComparedOutcome,
    compare_suite,
    read_baseline,
    save_baseline,
)
from flyweight.prove.figures import SpeedInterval
from flyweight.prove.outcome import ProveOutcome
from flyweight.prove.page import write_page
from flyweight.prove.proved import ProvedSuite, ProveFailure
from flyweight.prove.report import report_suite
from flyweight.prove.runner import ProvePlan, prove
from flyweight.prove.suite import Suite, SuiteRequest
from flyweight.prove.technique import CHANCE, LIMIT, ProveJob, Side, Technique

HERE = Surroundings("a processor", 2, 8 << 30, "1.0", "")


def measure(*off: float, on: float = 1.0, others: float | None = 0.0) -> ProveOutcome:
    clock, take = FakeClock(), cycle_times(*off)

    def open_side(technique: Technique, job: ProveJob, name: str) -> Side:
        return FakeSide(name, clock, lambda *run: take(*run) * (on if name == "on" else 1.0))

    found = prove(make_technique(), JOB, ProvePlan(seconds=1000), open_side, clock=clock)
    pairs = tuple((replace(a, others=others), replace(b, others=others)) for a, b in found.pairs)
    return replace(found, pairs=pairs, model_bytes=7)


def make_suite(outcome: ProveOutcome) -> ProvedSuite:
    return ProvedSuite("", HERE, (outcome,))


def keep(folder: Path, outcome: ProveOutcome) -> Baseline:
    path = folder / "baseline.json"
    save_baseline(path, make_suite(outcome))
    return read_baseline(path)


def compare(folder: Path, before: ProveOutcome, now: ProveOutcome) -> ComparedOutcome:
    (found,) = compare_suite(make_suite(now), keep(folder, before))
    return found


def test_the_same_run_is_the_same(tmp_path: Path) -> None:
    found = compare(tmp_path, measure(2.0), measure(2.0))
    assert (found.verdict, found.quiet, found.before) == ("same", True, 2.0)
    assert found.speed == found.time == SpeedInterval(1.0, 1.0, 1.0)


def test_a_longer_time_is_slower_on_a_quiet_machine_only(tmp_path: Path) -> None:
    """Off and on both take twice as long: the speed-up is unchanged."""
    found = compare(tmp_path, measure(2.0), measure(4.0, on=2.0))
    assert (found.time.median, found.speed.median, found.verdict) == (2.0, 1.0, "slower")
    found = compare(tmp_path, measure(2.0), measure(4.0, on=2.0, others=0.5))
    assert (found.quiet, found.verdict) == (False, "same")
    found = compare(tmp_path, measure(2.0, others=0.5), measure(4.0, on=2.0))
    assert (found.quiet, found.verdict) == (False, "same")


def test_a_smaller_speed_up_is_slower_on_any_machine(tmp_path: Path) -> None:
    found = compare(tmp_path, measure(2.0), measure(1.5, others=1.5))
    assert (found.speed.median, found.verdict) == (0.75, "slower")


def test_a_shorter_time_is_faster(tmp_path: Path) -> None:
    assert compare(tmp_path, measure(2.0), measure(1.0, on=0.5)).verdict == "faster"


def change(path: Path, **values: Any) -> None:
    document = json.loads(path.read_text())
    for key, value in values.items():
        place = document if key in document else document["techniques"][0]
        place[key] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"on": {"times": [1.0]}, "off": {"times": [1.0]}}, "measurements = 1 are too few"),
        ({"on": {"times": [1.0, 2.0, 3.0]}}, "times of fake that are no pairs"),
        ({"on": {"times": [0.0] * 5}}, "times of fake that are no pairs"),
        ({"format": "other"}, "has format 'other'; allowed: flyweight prove 1"),
        ({"machine": 5}, "is no baseline of flyweight prove"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(
    values: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    keep(tmp_path, measure(2.0))
    change(tmp_path / "baseline.json", **values)
    with pytest.raises(ConfigError, match=problem):
        read_baseline(tmp_path / "baseline.json")


def test_a_missing_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_baseline(tmp_path / "nothing.json")
    (tmp_path / "broken.json").write_bytes(b"\xff{")
    with pytest.raises(ConfigError, match="is no baseline"):
        read_baseline(tmp_path / "broken.json")


def test_another_machine_model_metric_or_technique_is_refused(tmp_path: Path) -> None:
    kept = keep(tmp_path, measure(2.0))
    kept.check_machine(HERE)
    with pytest.raises(ConfigError, match="another machine: a processor with 2 cores, not a proc"):
        kept.check_machine(replace(HERE, cores=4))
    kept.check_model("fake", "model.gguf", 7)
    with pytest.raises(ConfigError, match=r"another model: model.gguf with 7 bytes, not b.gguf"):
        kept.check_model("fake", "b.gguf", 7)
    with pytest.raises(ConfigError, match="another model"):
        kept.check_model("fake", "model.gguf", 8)
    with pytest.raises(ConfigError, match="has throughput of fake, not ttft; nearest valid: --met"):
        kept.check_metric("fake", "ttft")
    with pytest.raises(ConfigError, match="the baseline has no apc; allowed: its techniques: fake"):
        kept.find("apc")


def test_a_suite_refuses_a_baseline_before_it_measures(tmp_path: Path) -> None:
    def open_side(technique: Technique, job: ProveJob, name: str) -> Side:
        raise AssertionError("nothing is opened")

    request = SuiteRequest([make_technique()], 10, baseline=keep(tmp_path, measure(2.0)))
    with pytest.raises(ConfigError, match=r"another model: model.gguf .* not stories.gguf"):
        Suite(request, open_side=open_side).run()
    other = replace(make_technique(), name="other")
    request = replace(request, techniques=[other])
    with pytest.raises(ConfigError, match="has no other; allowed: its techniques: fake"):
        Suite(request, open_side=open_side).run(strict=True)


def test_a_technique_that_fails_does_not_end_the_others() -> None:
    clock, opened = FakeClock(), []

    def open_side(technique: Technique, job: ProveJob, name: str) -> Side:
        opened.append(technique.name)
        if technique.name == "bad":
            raise ConfigError("needs two cores")
        return FakeSide(name, clock, cycle_times(2.0))

    bad = replace(make_technique(), name="bad")
    found = Suite(SuiteRequest([bad, make_technique()], 1000), None, open_side, clock).run()
    assert [one.technique.name for one in found.outcomes] == ["fake"]
    assert found.failures == (ProveFailure(bad, "needs two cores", skipped=True),)
    with pytest.raises(ConfigError, match="needs two cores"):
        Suite(SuiteRequest([bad], 1000), None, open_side, clock).run(strict=True)


def test_a_ceiling_is_off_as_measured_over_on_at_the_limits() -> None:
    """Off takes 2 s and on 1 s.  At the limits on takes 0.8 s: no more than 2.5x can be measured.
    That both limits are 1.25 apart bounds nothing, as off took twice its own least.
    """
    outcome = measure(2.0)
    pairs = tuple(
        (replace(a, figures={LIMIT: 1.0}), replace(b, figures={LIMIT: 0.8}))
        for a, b in outcome.pairs
    )
    outcome = replace(outcome, pairs=pairs)
    assert outcome.ceiling == pytest.approx(2.5) and outcome.speed.median == 2.0
    notes = report_suite(make_suite(outcome)).notes
    assert "  at most 2.50x: at the machine's limits, on takes 0.8 s; off took 2.00 times" in (
        "".join(notes)
    )
    assert not any("more than that" in line for line in notes)
    slow = tuple((a, replace(b, figures={LIMIT: 1.25})) for a, b in pairs)
    beaten = replace(outcome, pairs=slow)  # 2 / 1.25
    assert beaten.ceiling == pytest.approx(1.6)
    assert any("more than that was" in line for line in report_suite(make_suite(beaten)).notes)
    assert replace(outcome, metric="ttft").ceiling is None and measure(2.0).ceiling is None


def test_the_best_of_samples_is_the_limit() -> None:
    samples = [MachineLimits(1.0, 20.0, 3.0, 4.0), MachineLimits(2.0, 10.0, 3.5, 1.0)]
    assert find_best(samples) == MachineLimits(2.0, 20.0, 3.5, 4.0)


@pytest.mark.parametrize(
    ("gained", "lost", "verdict"), [(9, 1, "keep"), (1, 9, "harmful"), (5, 5, "no effect")]
)
def test_what_is_right_decides_before_time(gained: int, lost: int, verdict: str) -> None:
    """Of 20 texts.  Nine gained and one lost: 8 / 22 ± 1.96 √((12/22 - (8/22)²) / 22), so 9.5 to
    63.2 points.
    """
    rest = 20 - gained - lost
    off = (False,) * gained + (True,) * (lost + rest)
    on = (True,) * gained + (False,) * lost + (True,) * rest
    outcome = measure(2.0)
    pairs = tuple(
        (replace(a, right=off, figures={CHANCE: 0.5}), replace(b, right=on, figures={CHANCE: 0.5}))
        for a, b in outcome.pairs
    )
    outcome = replace(outcome, pairs=pairs)
    assert outcome.verdict == verdict
    if verdict == "keep":
        words = "the same 20 texts: +40.0 points [+9.5, +63.2]"
        assert words in "".join(report_suite(make_suite(outcome)).notes)


def test_ctrl_c_keeps_what_was_found() -> None:
    clock = FakeClock()

    def open_side(technique: Technique, job: ProveJob, name: str) -> Side:
        if technique.name == "second":
            raise KeyboardInterrupt
        return FakeSide(name, clock, cycle_times(2.0))

    second = replace(make_technique(), name="second")
    request = SuiteRequest([make_technique(), second, make_technique()], 1000)
    found = Suite(request, None, open_side, clock).run()
    assert [one.technique.name for one in found.outcomes] == ["fake"] and found.stopped


def test_a_question_mark_is_explained_once() -> None:
    outcome = measure(2.0)
    few = replace(outcome, pairs=outcome.pairs[:2])
    suite = replace(make_suite(few), outcomes=(few, few, outcome))
    (table, _, work) = report_suite(suite).tables
    verdicts = [row["verdict"] for row in table.list_records()]
    assert verdicts == ["keep?", "keep?", "keep"]
    (note,) = table.notes
    assert note.startswith("? fewer than 6 pairs")
    assert [row["certain"] for row in work.list_records()] == [False, False, True]
    assert report_suite(make_suite(outcome)).tables[0].notes == []
    page = write_page(suite, report_suite(suite), "flyweight prove fake")
    assert page.count("? fewer than 6 pairs") == 1 and '<td class="keep">keep?</td>' in page


def test_the_page_has_everything_and_fetches_nothing(tmp_path: Path) -> None:
    outcome = replace(measure(2.0), notes=("<b>note</b>",))
    suite = replace(make_suite(outcome), failures=(ProveFailure(make_technique(), "why"),))
    changes = compare_suite(suite, keep(tmp_path, outcome))
    page = write_page(suite, report_suite(suite, changes), "flyweight prove fake '<m>'")
    for words in ("2.00x [2.00, 2.00], keep", "a processor, 2 cores", "is off", "&lt;b&gt;note"):
        assert words in page
    assert "&lt;m&gt;" in page and "<m>" not in page and "<b>" not in page
    assert "<script" not in page and page.count("http") == page.count("http://www.w3.org/2000/svg")
