"""The float32 folders of `full_models` hold what the files in 8 bits hold, weight by weight and
token by token, as our own readers see them.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import convert
from flyweight.describe import ModelDescription, describe
from flyweight.weights.load import read_matrix, read_vector
from full_models import STORIES, write_stories, write_stories3m

TEXT = (
    'Once upon a time, there\'s a  bunny.\n\n"Hop!" it said\t-- 12,345 times\r\n'
    "<|endoftext|>\nÉlan, 兎, 🐇 and the <end>"
)


def assert_equal_weights(found: ModelDescription, other: ModelDescription) -> None:
    """Slots hold what the model computes with, whatever rows the files have them in."""
    theirs = {slot.name: slot for slot in other.plan.slots}
    assert [slot.name for slot in found.plan.slots] == list(theirs)
    for slot in found.plan.slots:
        read = read_vector if slot.kind == "vector" else read_matrix
        a, b = read(found.checkpoint, slot), read(other.checkpoint, theirs[slot.name])
        assert a.dtype == np.float32 and np.array_equal(a, b), slot.name


def test_the_story_model_is_the_package_s(tmp_path: Path) -> None:
    found, packaged = describe(write_stories(tmp_path / "full")), describe(STORIES)
    assert {tensor.kind for tensor in found.checkpoint.tensors.values()} == {"f32"}
    assert found.spec.context == packaged.spec.context
    assert found.stop_ids == packaged.stop_ids
    assert_equal_weights(found, packaged)
    for special in (True, False):
        ids = found.tokenizer.encode(TEXT, add_special=special, parse_special=special)
        assert ids == packaged.tokenizer.encode(TEXT, add_special=special, parse_special=special)
        assert found.tokenizer.decode(ids) == packaged.tokenizer.decode(ids)


@pytest.mark.skipif("FLYWEIGHT_DATA" not in os.environ, reason="needs the data folder")
def test_real_text_has_the_same_tokens(tmp_path: Path) -> None:
    file = Path(os.environ["FLYWEIGHT_DATA"]) / "text-tinystories" / "tinystories-excerpt.txt"
    text = file.read_text("utf-8")[:100_000]
    found, packaged = describe(write_stories(tmp_path / "full")), describe(STORIES)
    assert found.tokenizer.encode(text) == packaged.tokenizer.encode(text)


@pytest.mark.skipif("FLYWEIGHT_DATA" not in os.environ, reason="needs the data folder")
def test_the_other_model_is_that_of_the_8_bit_file(tmp_path: Path) -> None:
    data = Path(os.environ["FLYWEIGHT_DATA"])
    found = describe(write_stories3m(tmp_path / "full", data))
    source = data / "stories3m"
    gguf = convert.to_gguf(
        source / "stories3M-q80.bin", source / "tok4096.bin", tmp_path / "other.gguf"
    )
    assert {tensor.kind for tensor in found.checkpoint.tensors.values()} == {"f32"}
    assert_equal_weights(found, describe(gguf))
    assert found.tokenizer.encode(TEXT) == describe(gguf).tokenizer.encode(TEXT)
