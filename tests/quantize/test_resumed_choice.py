"""A choice of types under a budget that was interrupted: what was measured is not measured again,
and the file is that of a run without interruption.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from failing_disk import Disk, Killed
from jobs import prepare, run_job

from flyweight.describe import SilentListener
from flyweight.errors import ConfigError
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.journal import MEASURED, find_work
from flyweight.quantize.measurements import Key, open_measurements
from flyweight.quantize.sensitivity import SensitivityRun

BUDGET: dict[str, Any] = {"method": "rtn", "samples": 2, "length": 32, "target_size": 90_000}
KILLED = """
import os, signal, sys
from pathlib import Path
from jobs import make_words, prepare
from test_resumed_choice import BUDGET
def report(stage, done, total):
    if done == 20:
        os.kill(os.getpid(), signal.SIGKILL)
prepare(Path(sys.argv[1]), make_words(), Path(sys.argv[2]), None, report, **BUDGET)
"""


class Notes(SilentListener):
    """Keeps what users are told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


class Counted:
    """Counts what is measured, and stops before the measurement that is the `stop`th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[Key] = Counter()
        self.stop, self.made = -1, 0
        real, make = SensitivityRun.measure, SensitivityRun.__init__

        def measure(run: SensitivityRun, slot: str, tensor: str, kind: str) -> float:
            if self.stop == self.seen.total():
                raise Killed
            self.seen[repr(sorted(run._base.items())), slot, tensor, kind] += 1
            return real(run, slot, tensor, kind)

        def start(run: SensitivityRun, *given: Any) -> None:
            self.made += 1
            make(run, *given)

        monkeypatch.setattr(SensitivityRun, "measure", measure)
        monkeypatch.setattr(SensitivityRun, "__init__", start)


def choose(full: Path, out: Path, words: CalibrationText, **options: Any) -> tuple[bytes, str]:
    """The file's bytes, and the first note."""
    notes = Notes()
    prepared = prepare(full, words, find_work(out), notes, **BUDGET | options)
    return run_job(prepared, out).read_bytes(), notes.lines[0]


@pytest.mark.parametrize(
    "budget", [{"method": "gptq"}, {"method": "rtn", "target_size": None, "max_kld": 0.1}]
)
def test_nothing_is_measured_twice(
    full: Path,
    words: CalibrationText,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    budget: dict[str, Any],
) -> None:
    """Killed among single matrices, among those around a choice, and while the file is written."""
    counted = Counted(monkeypatch)
    whole, note = choose(full, tmp_path / "whole.gguf", words, **budget)
    assert note.startswith("choosing types needs")
    all_of_them, counted.seen = counted.seen, Counter()
    singles = sum(1 for base, *_ in all_of_them if base == "[]")
    assert 20 < singles < len(all_of_them)
    out = tmp_path / "out.gguf"
    for stop in (20, singles + 5):
        counted.stop = stop
        with pytest.raises(Killed):
            choose(full, out, words, **budget)
        assert counted.seen.total() == stop
    counted.stop = -1

    def interrupt(stage: str, *_: int) -> None:
        if stage.startswith("layer 2"):
            raise Killed

    prepared = prepare(full, words, find_work(out), **BUDGET | budget)
    with pytest.raises(Killed):
        run_job(prepared, out, interrupt)
    counted.made = 0
    again, note = choose(full, out, words, **budget)
    assert again == whole
    assert counted.made == 0 and counted.seen == all_of_them
    assert int(note.split()[1]) > counted.seen.total()  # with those of whole choices
    assert "measurements of an interrupted choice" in note
    assert not find_work(out).exists()


def test_a_killed_process(full: Path, words: CalibrationText, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, full, find_work(out)],
        env={"PYTHONPATH": ":".join(sys.path)}, check=False,
    )  # fmt: skip
    assert ended.returncode == -9
    made, note = choose(full, out, words)
    assert note == "found 20 measurements of an interrupted choice of types"
    assert made == choose(full, tmp_path / "whole.gguf", words)[0]


def test_at_any_write(
    full: Path,
    words: CalibrationText,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_length: bool,
) -> None:
    whole, _ = choose(full, tmp_path / "whole.gguf", words)
    disk = Disk(monkeypatch)
    out = tmp_path / "out.gguf"
    choose(full, out, words)
    count = disk.count
    every = range(count)
    places = every if at_length else [1, 2, count // 2, count - 2]
    for at in places:
        full_disk = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for error in (Killed(), full_disk):
            out.unlink()
            disk.fail(at, error)
            with pytest.raises(ConfigError if error is full_disk else Killed):
                choose(full, out, words)
            disk.fail(-1, error)
            if out.exists():  # only what comes after it was left out
                shutil.rmtree(find_work(out), ignore_errors=True)
            else:
                choose(full, out, words)
            assert out.read_bytes() == whole, at
            assert not find_work(out).exists()


def fill(folder: Path, count: int) -> None:
    with open_measurements(folder, "job") as kept:
        for i in range(count):
            if kept.get(("matrix", str(i))) is None:
                kept["matrix", str(i)] = i / 7


def test_a_file_that_ends_at_any_byte(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    path = tmp_path / MEASURED
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        for tail in (b"", b"\0" * 9):
            path.write_bytes(whole[:size] + tail)
            lines = whole[:size].count(b"\n")
            with open_measurements(tmp_path, "job") as kept:
                assert len(kept) == max(0, lines - 1)
                assert all(kept.get(("matrix", str(i))) == i / 7 for i in range(lines - 1))
            fill(tmp_path, 4)
            assert path.read_bytes() == whole


def test_a_damaged_line_ends_what_is_found(tmp_path: Path) -> None:
    fill(tmp_path, 4)
    path = tmp_path / MEASURED
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\0\0\n", b"[]\n", b"7\n", b'["matrix", 3]\n', b"[[0.5], 0.5]\n"):
        path.write_bytes(b"".join([*lines[:2], damaged, *lines[3:]]))
        with open_measurements(tmp_path, "job") as kept:
            assert len(kept) == 1


def test_what_was_measured_serves_other_budgets_but_not_other_inputs(
    full: Path, words: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.gguf"
    prepare(full, words, find_work(out), **BUDGET)
    with pytest.raises(ConfigError, match="unfinished job with other options or another input"):
        choose(full, out, CalibrationText.of("other", ["a bird sang of rain, " * 200]))
    kept = (find_work(out) / MEASURED).read_bytes().count(b"\n") - 1
    assert choose(full, out, words, target_size=100_000, method="gptq")[1].startswith(
        f"found {kept} measurements"
    )


def test_a_folder_of_others_is_left_alone(
    full: Path, words: CalibrationText, tmp_path: Path
) -> None:
    work = tmp_path / "out.gguf.partial"
    work.mkdir()
    (work / "mine").write_text("x")
    with pytest.raises(ConfigError, match="has files that no job here wrote; remove it"):
        prepare(full, words, work, **BUDGET)
    assert [file.name for file in work.iterdir()] == ["mine"]


def test_a_budget_below_the_least_leaves_nothing(
    full: Path, words: CalibrationText, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="is less than the file needs"):
        prepare(full, words, tmp_path / "out.gguf.partial", **BUDGET | {"target_size": 10})
    assert not list(tmp_path.iterdir())
