"""Texts with a hole, in the vocabularies of models that fill them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flyweight.text.infill import Infill
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.gguf import read_gguf

Data = Callable[[str], Path]


def vocabulary(data: Data, name: str) -> Tokenizer:
    return load_tokenizer(read_gguf(data(f"tokenizers-ggml-vocab/ggml-vocab-{name}.gguf")).metadata)


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("starcoder", ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]),
        ("deepseek-coder", ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]),
    ],
)
def test_a_hole_has_the_vocabularys_marks_around_it(
    data: Data, name: str, marks: list[str]
) -> None:
    tokenizer = vocabulary(data, name)
    infill = Infill.of(tokenizer)
    assert infill is not None
    before, after = f"def f(x):\n    {marks[1]}", "\n    return y\n"
    ids = infill.encode_prompt(before, after, tokenizer)
    places = [ids.index(token) for token in (infill.before, infill.after, infill.hole)]
    assert [tokenizer.piece(ids[place]) for place in places] == marks
    start, middle, end = places
    assert end == len(ids) - 1
    assert tokenizer.decode(ids[start + 1 : middle], skip_special=False) == before, "no forging"
    assert tokenizer.decode(ids[middle + 1 : end], skip_special=False) == after


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "falcon"])
def test_other_vocabularies_have_none(data: Data, name: str) -> None:
    assert Infill.of(vocabulary(data, name)) is None
