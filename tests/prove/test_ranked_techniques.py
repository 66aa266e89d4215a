"""Tensor and pipeline parallelism as techniques: the same work over two processes, what is
predicted before, and the bubble by its formula.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import find
from flyweight.errors import ConfigError
from flyweight.parallel.pipeline import PipelineTimes
from flyweight.planning import rank_limits
from flyweight.planning.speed import SpeedQuestion
from flyweight.prove import ranked_side
from flyweight.prove.outcome import check_work
from flyweight.prove.ranked_side import BUBBLE, EXCHANGE, FORMULA, RankedSide, fit_question
from flyweight.prove.registry import find_technique
from flyweight.prove.technique import SIDES, Measurement, ProveJob

STORIES = find(Settings.of())
NAMES = ("tensor-parallel", "pipeline-parallel")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", SIDES)
def test_a_technique_is_skipped_where_torch_is_missing(
    name: str, side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranked_side, "find_spec", lambda module: None)
    monkeypatch.setitem(sys.modules, "flyweight.parallel.comm", None)
    with pytest.raises(ConfigError, match=r"need torch, which cannot be imported .*: pip install"):
        find_technique(name).open(ProveJob(STORIES, tmp_path, 2), side)


@pytest.mark.parametrize("name", NAMES)
def test_one_thread_is_not_divided(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranked_side, "import_collectives", lambda: None)
    with pytest.raises(ConfigError, match="threads = 1 are fewer than the 2 ranks; allowed: 2"):
        find_technique(name).open(ProveJob(STORIES, tmp_path, 1), "off")


def test_a_question_is_cut_as_requests_are() -> None:
    asked = SpeedQuestion(512, 600, (1,))
    assert fit_question(asked, 512) == replace(asked, prompt=511, context=512)
    assert fit_question(asked, 8192) == asked


def test_the_bubble_is_what_a_stage_did_not_compute() -> None:
    """A step of 8 s in three parts, of which two stages wait a quarter by the formula."""
    times = PipelineTimes(steps=1, seconds=8.0, computing=5.0, bubbles=2.0)
    assert (times.measured, times.expected) == (3 / 8, 1 / 4)
    assert ranked_side.read_bubble(None) == {BUBBLE: 0.0, FORMULA: 0.0}


@pytest.fixture(scope="module")
def torch() -> None:
    pytest.importorskip("torch", reason="the extra [distributed] is not installed")


def run_sides(name: str, folder: Path) -> tuple[list[Measurement], tuple[str, ...]]:
    """Off and on, and the notes of on."""
    technique, runs, notes = find_technique(name), [], ()
    for side in SIDES:
        opened = technique.open(ProveJob(STORIES, folder, 2), side)
        assert isinstance(opened, RankedSide)
        runs.append(opened.run(0, 0.01))
        children, notes = opened.loaded.ranks.children, opened.notes
        opened.close()
        assert all(child.poll() is not None for child in children)
        assert len(children) == (side == "on")
    check_work(technique, (runs[0], runs[1]))
    return runs, notes


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_do_the_same_work(
    name: str, torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt of 511 tokens is one step of seven micro-batches."""
    monkeypatch.setattr(rank_limits, "SAMPLES", 1)
    (off, on), notes = run_sides(name, tmp_path)
    assert notes[0].startswith("predicted by `flyweight plan parallel` before it was measured: ")
    assert "NUMA node" in notes[1] and len(notes) == (2 if name == "tensor-parallel" else 3)
    assert (off.figures[EXCHANGE], off.figures[BUBBLE], off.figures[FORMULA]) == (0, 0, 0)
    assert on.figures[EXCHANGE] > 0 and off.others is not None and on.others is not None
    assert on.peak > off.peak, "memory of both processes"
    if name == "pipeline-parallel":
        assert on.figures[FORMULA] == pytest.approx(100 / 8)
        assert 0 < on.figures[BUBBLE] < 100
        assert off.answers == on.answers and off.work == (1, 511, 1)
    else:
        assert on.figures[FORMULA] == 0


def test_a_link_is_measured_between_two_processes(torch: None) -> None:
    from flyweight.bench.rank_link import measure_link

    link = measure_link()
    assert 0 < link.latency < 10 and link.rate > 0
