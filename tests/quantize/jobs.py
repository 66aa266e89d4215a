"""Runs jobs on a tiny model, for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flyweight.config import Settings
from flyweight.describe import LoadListener
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.job import QuantizeJob, Report
from flyweight.quantize.layers import LayerRun
from flyweight.quantize.make import PreparedJob, make_backends, prepare_job
from flyweight.quantize.options import QuantizeOptions
from flyweight.quantize.tensors import split_layers
from flyweight.weights.load import load_slots

WORDS = "the cat sat on the mat and looked at a bird, which sang of rain. Then it slept; "
Run = Callable[..., Path]


def make_words() -> CalibrationText:
    return CalibrationText.of("cat", ["".join(f"{i}: {WORDS}" for i in range(60))])


def prepare(
    model: Path,
    words: CalibrationText,
    work: Path | None = None,
    listener: LoadListener | None = None,
    report: Report | None = None,
    **options: Any,
) -> PreparedJob:
    given = {"samples": 4, "length": 64} | options
    if QuantizeOptions(**given).container != "gguf":  # whose types have groups of their own
        given = {"group_size": 32} | given
    settings = Settings.of(model=str(model), threads=1)
    return prepare_job(settings, QuantizeOptions(**given), words, listener, report, work)


def run_job(prepared: PreparedJob, out: Path, report: Any = None) -> Path:
    settings = Settings.of(model=str(prepared.job.found.checkpoint.path), threads=1)
    backends = make_backends(settings, prepared.job.found, 1)
    prepared.job.run(out, backends, report or (lambda stage, done, total: None))
    return out


def measure_gram(job: QuantizeJob) -> Any:
    """The sum of x^T x of what the first layer's q, k and v read."""
    settings = Settings.of(model=str(job.found.checkpoint.path))
    floats = make_backends(settings, job.found, 1).floats
    top, layers = split_layers(job.found.plan, len(job.found.spec.layers))
    assert job.windows is not None
    run = LayerRun(job.found.spec, job.windows)
    run.embed(floats, load_slots(job.found.checkpoint, top, floats))
    seen: list[Any] = []
    weights = load_slots(job.found.checkpoint, layers[0], floats)
    run.observe(0, floats, weights, lambda s, x: seen.append(x) if s.endswith("qkv") else None)
    x = np.concatenate(seen).astype(np.float64)
    return x.T @ x
