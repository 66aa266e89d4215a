"""Runs jobs on a tiny model, for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flyweight.config import Settings
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.make import PreparedJob, make_backends, prepare_job
from flyweight.quantize.options import QuantizeOptions

WORDS = "the cat sat on the mat and looked at a bird, which sang of rain. Then it slept; "
Run = Callable[..., Path]


def make_words() -> CalibrationText:
    return CalibrationText.of("cat", ["".join(f"{i}: {WORDS}" for i in range(60))])


def prepare(model: Path, words: CalibrationText, **options: Any) -> PreparedJob:
    given = {"samples": 4, "length": 64} | options
    if QuantizeOptions(**given).container != "gguf":  # whose types have groups of their own
        given = {"group_size": 32} | given
    return prepare_job(Settings.of(model=str(model), threads=1), QuantizeOptions(**given), words)


def run_job(prepared: PreparedJob, out: Path, report: Any = None) -> Path:
    settings = Settings.of(model=str(prepared.job.found.checkpoint.path), threads=1)
    backends = make_backends(settings, prepared.job.found, 1)
    prepared.job.run(out, backends, report or (lambda stage, done, total: None))
    return out
