"""A text and its model."""

from pathlib import Path

import pytest

from flyweight.eval.windows import EvalText
from tiny_model import tiny_folder

WORDS = "the cat sat on the mat and looked at a bird, which sang of rain. Then it slept; "


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> EvalText:
    file = tmp_path_factory.mktemp("text") / "cat.txt"
    file.write_text("".join(f"{i}: {WORDS}" for i in range(12)), encoding="utf-8")
    return EvalText.read(str(file))


@pytest.fixture(scope="session", params=["beginning token", "no beginning token"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    add = request.param == "beginning token"
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model", add_bos_token=add)
