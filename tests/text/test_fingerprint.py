"""The hash of a tokenizer: what changes it, and what does not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyweight.describe import ASSETS
from flyweight.text.fingerprint import compute_fingerprint
from flyweight.validation.strings import Strings
from flyweight.weights.gguf import read_gguf
from tiny_model import tiny_folder

STOPS = (2, 7)
KEYS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": Strings.of(["a", "bc", "d"]),
    "tokenizer.ggml.token_type": np.array([1, 1, 3], np.int32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.chat_template": "{{ messages }}",
    "general.name": "one",
}


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer.ggml.tokens": Strings.of(["ab", "c", "d"])},
        {"tokenizer.ggml.tokens": Strings.of([])},
        {"tokenizer.ggml.token_type": np.array([1, 1, 1], np.int32)},
        {"tokenizer.ggml.bos_token_id": 2},
        {"tokenizer.ggml.eos_token_id": 2},
        {"tokenizer.chat_template": "{{ messages[0] }}"},
    ],
)
def test_keys_of_a_tokenizer_count(other: dict[str, object]) -> None:
    assert compute_fingerprint({**KEYS, **other}, STOPS) != compute_fingerprint(KEYS, STOPS)


def test_other_keys_and_their_order_do_not_count() -> None:
    other = dict(reversed({**KEYS, "general.name": "two", "llama.block_count": 7}.items()))
    assert compute_fingerprint(other, reversed(STOPS)) == compute_fingerprint(KEYS, STOPS)
    assert compute_fingerprint(KEYS, (2,)) != compute_fingerprint(KEYS, STOPS)


def test_a_file_has_the_fingerprint_of_its_copy(tmp_path: Path) -> None:
    """Where lists are views of the file."""
    raw, copy = (ASSETS / "stories.gguf").read_bytes(), tmp_path / "copy.gguf"
    copy.write_bytes(raw[:-8] + bytes(8))  # of the last tensor
    found = {compute_fingerprint(read_gguf(path).metadata, STOPS)
             for path in (ASSETS / "stories.gguf", copy)}  # fmt: skip
    assert len(found) == 1


@pytest.mark.parametrize(
    ("name", "text", "counts"),
    [
        ("README.md", "text", False),
        ("generation_config.json", '{"temperature": 0.5}', False),
        ("model.safetensors", "other weights", False),
        ("tokenizer.model", "one that is not read", False),
        ("chat_template.jinja", "{{ messages }}", True),
        ("special_tokens_map.json", "{}", True),
        ("additional_chat_templates/rag.jinja", "{{ messages }}", True),
        ("tokenizer.json", "", True),
        ("tokenizer_config.json", "", True),
    ],
)
def test_files_of_a_folder(tmp_path: Path, name: str, text: str, counts: bool) -> None:
    folder = tiny_folder(tmp_path / "model")
    before, file = compute_fingerprint(folder, STOPS), folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text or json.dumps(json.loads(file.read_text()) | {"version": "2.0"}))
    assert (compute_fingerprint(folder, STOPS) != before) is counts


def test_merges_belong_to_a_vocabulary(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text("one")
    before = compute_fingerprint(tmp_path, STOPS)
    (tmp_path / "merges.txt").write_text("two")
    assert compute_fingerprint(tmp_path, STOPS) != before


def test_a_long_vocabulary_is_not_decoded() -> None:
    """Of 300,000 strings that takes longer than to hash their bytes."""

    class Raw(Strings):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("a string was decoded")

        def __iter__(self) -> Any:
            raise AssertionError("all strings were decoded")

    words, key = Strings.of(["a", "bc"]), "tokenizer.ggml.tokens"
    raw = Raw(words.raw, words.begin, words.end)
    assert compute_fingerprint({key: raw}, STOPS) == compute_fingerprint({key: words}, STOPS)
