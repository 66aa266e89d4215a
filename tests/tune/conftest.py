"""A tiny model in full precision, whose rows hold whole blocks of 32."""

from pathlib import Path

import pytest

from flyweight.quantization import Evaluation
from flyweight.tune import making
from tiny_model import CONFIG, tiny_folder, tiny_tensors

WIDER = {"hidden_size": 64, "intermediate_size": 128}


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = tiny_tensors({**CONFIG, **WIDER})
    return tiny_folder(tmp_path_factory.mktemp("tune") / "full", WIDER, tensors)


@pytest.fixture
def short_evaluation(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses are measured on few tokens of a short text."""
    text = tmp_path_factory.mktemp("text") / "numbers.txt"
    text.write_text("".join(f"{i} cats and {i * i} birds. " for i in range(200)))
    engine = {"memory_limit": "8GiB", "threads": 1}
    monkeypatch.setattr(making, "USUAL", Evaluation(str(text), 600, engine))
