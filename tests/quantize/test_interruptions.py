"""A job that is killed, or meets a full disk, at any of its writes: nothing is under the final name
that is not whole, and the same command goes on to the same bytes.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from failing_disk import Disk, Killed, read_files
from jobs import prepare, run_job

from flyweight.errors import ConfigError
from flyweight.quantize.calibration import CalibrationText

FORMS: dict[str, dict[str, Any]] = {
    "folder": {"method": "gptq", "format": "gptq"},
    "gguf": {"method": "rtn", "format": "gguf", "weighed": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_at_any_write(
    full: Path,
    words: CalibrationText,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_length: bool,
    form: str,
) -> None:
    def run(out: Path) -> None:
        run_job(prepare(full, words, samples=2, length=32, **FORMS[form]), out)

    disk = Disk(monkeypatch)
    run(tmp_path / "whole")
    whole, count = read_files(tmp_path / "whole"), disk.count
    assert count > 30
    every = range(count)
    places = every if at_length else [*every[:5], *every[5:-6:19], *every[-6:]]
    for at in places:
        full_disk = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for error in (Killed(), full_disk):
            out = tmp_path / "out"
            disk.fail(at, error)
            expected = ConfigError if error is full_disk else Killed
            with pytest.raises(expected):
                run(out)
            disk.fail(-1, error)
            if out.exists():  # only what comes after it was left out
                assert read_files(out) == whole, at
                shutil.rmtree(tmp_path / "out.partial", ignore_errors=True)
            else:
                run(out)
                assert read_files(out) == whole, at
                assert not (tmp_path / "out.partial").exists()
            shutil.rmtree(out) if out.is_dir() else out.unlink()


def test_a_full_disk_is_one_line(
    full: Path, words: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.fail(12, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(ConfigError) as refused:
        run_job(prepare(full, words), tmp_path / "out")
    text = str(refused.value)
    assert "No space left on device" in text and "\n" not in text
    assert str(tmp_path / "out") in text and "the same command goes on" in text


def test_a_model_that_was_taken_away_is_made_again(
    full: Path, words: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the model has its name: the journal says that all is written."""
    disk = Disk(monkeypatch)
    out = tmp_path / "out"
    run_job(prepare(full, words), out)
    whole, count = read_files(out), disk.count
    shutil.rmtree(out)
    disk.fail(count - 2, Killed())
    with pytest.raises(Killed):
        run_job(prepare(full, words), out)
    assert read_files(out) == whole and (tmp_path / "out.partial/journal.json").is_file()
    shutil.rmtree(out)
    disk.fail(-1, Killed())
    run_job(prepare(full, words), out)
    assert read_files(out) == whole
