"""Techniques whose off is a debug option or a simulation: each side does what it names."""

from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import find
from flyweight.errors import ConfigError
from flyweight.plan.machine import Machine
from flyweight.prove.registry import find_technique
from flyweight.prove.technique import SIDES, Measurement, ProveJob
from flyweight.prove.techniques import attention

STORIES = find(Settings.of())


def run_both(name: str, folder: Path, share: float, round: int = 0) -> list[Measurement]:
    found = []
    for side in SIDES:
        opened = find_technique(name).open(ProveJob(STORIES, folder, 2), side)
        found.append(opened.run(round, share))
        opened.close()
    assert found[0].work == found[1].work
    return found


def test_without_a_kv_cache_whole_sequences_are_computed(tmp_path: Path) -> None:
    off, on = run_both("kv-cache", tmp_path, 0.25)
    assert on.figures["tokens computed"] == 64 + 127
    assert off.figures["tokens computed"] == sum(range(64, 64 + 128))
    assert off.answers == on.answers


def test_static_batches_take_the_steps_of_their_longest_answers(tmp_path: Path) -> None:
    off, on = run_both("continuous", tmp_path, 1 / 4)
    # 16 requests in 8 seats: prompts are one step of each batch
    assert off.work == on.work == (16, 16 * 8, 2 * 160 + 14 * 8)
    assert off.figures["steps"] == 2 * 160
    assert on.figures["steps"] < 200


def test_paged_memory_meets_its_bars_on_a_whole_trace(tmp_path: Path) -> None:
    off, on = run_both("fragmentation", tmp_path, 1.0)
    assert on.figures["waste, %"] < 4 and off.figures["waste, %"] > 50
    assert on.figures["most sequences"] > 4 * off.figures["most sequences"]


def test_the_window_has_the_founding_documents_latencies(tmp_path: Path) -> None:
    off, on = run_both("window", tmp_path, 1.0)
    assert on.ttfts == pytest.approx([1.005, 1.003, 1.002, 1.001, 1.0])
    assert (off.seconds, on.seconds) == pytest.approx([2.0, 1.005])


def test_simulations_say_so_and_are_the_same_again(tmp_path: Path) -> None:
    for name in ("fragmentation", "window"):
        side = find_technique(name).open(ProveJob(STORIES, tmp_path), "on")
        assert any("simulated" in note for note in side.notes)
        assert side.run(3, 0.1) == side.run(3, 0.1)


def test_attention_agrees_and_holds_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LENGTHS", (2048, 4096))
    off, on = run_both("attention", tmp_path, 1.0)
    assert off.work == (2, 2048 + 4096, 0)
    for length in ("2,048", "4,096"):
        assert on.figures[f"difference at {length}"] < 1e-5
        assert on.figures[f"seconds at {length}"] > 0
    assert not list(tmp_path.glob("*.npy"))


def test_attention_leaves_out_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def have(nbytes: int) -> None:
        here = Machine(2, nbytes, nbytes)
        monkeypatch.setattr(attention, "read_machine", lambda: here)

    have(2 << 30)
    side = attention.AttentionSide(ProveJob(STORIES, tmp_path), "off")
    assert side.lengths == [8192] and "32,768 positions are left out" in side.notes[0]
    have(1 << 40)  # the other side does the same work, whatever is free by then
    assert attention.AttentionSide(ProveJob(STORIES, tmp_path), "on").lengths == [8192]
    have(64 << 20)
    with pytest.raises(ConfigError, match=r"attention needs 320.0 MiB .* 64.0 MiB are available"):
        attention.AttentionSide(ProveJob(STORIES, tmp_path / "another"), "off")
