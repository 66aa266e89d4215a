"""A tiny model to quantise, and a calibration text."""

from pathlib import Path
from typing import Any

import pytest
from jobs import Run, make_words, prepare, run_job

from flyweight.quantize.calibration import CalibrationText
from tiny_model import CONFIG, tiny_folder, tiny_tensors

WIDER = {"hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a tiny Llama in float32."""
    tensors = tiny_tensors({**CONFIG, **WIDER})
    return tiny_folder(tmp_path_factory.mktemp("quantize") / "full", WIDER, tensors)


@pytest.fixture(scope="session")
def words() -> CalibrationText:
    return make_words()


@pytest.fixture
def quantise(full: Path, words: CalibrationText, tmp_path: Path) -> Run:
    """Runs a job with these options; the folder it wrote."""

    def run(**options: Any) -> Path:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        return run_job(prepare(full, words, **options), out)

    return run
