"""Damaged or lying tokenizer files: always a CheckpointError of one line that names the key."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_vocabularies import FIXTURES, bpe_metadata, spm_metadata

from flyweight.errors import CheckpointError, RequestError
from flyweight.text.library import catch_faults, make_encoding_error
from flyweight.text.tokenizer import load_tokenizer

SPM, BPE = spm_metadata(), bpe_metadata()
TOKENS = SPM["tokenizer.ggml.tokens"]
GONE = object()

CASES: list[tuple[dict[str, Any], str, Any, str]] = [
    (SPM, "model", GONE, "tokenizer.ggml.model is missing; known: llama, gpt2, gemma4, t5, bert"),
    (SPM, "model", "lama", "did you mean 'llama'"),
    (SPM, "model", 7, "tokenizer.ggml.model is 7"),
    (SPM, "tokens", GONE, "tokenizer.ggml.tokens is missing"),
    (SPM, "tokens", [], "tokenizer.ggml.tokens has 0 entries"),
    (SPM, "tokens", "abc", "tokenizer.ggml.tokens is not an array"),
    (SPM, "tokens", [*TOKENS[:-1], 3], r"tokens\[511\] is not a string"),
    (SPM, "tokens", [*TOKENS[:-1], "\udc80"], r"tokens\[511\] is not valid UTF-8"),
    (SPM, "tokens", TOKENS[:-1], "has 512 entries, but tokenizer.ggml.tokens has 511"),
    (SPM, "tokens", ["<0xZZ>" if t == "<0x41>" else t for t in TOKENS], "its type says byte"),
    (SPM, "scores", GONE, "tokenizer.ggml.scores is missing"),
    (SPM, "scores", [0.0] * 5, "scores has 5 entries"),
    (SPM, "scores", ["a"] * 512, "scores is not an array of numbers"),
    (SPM, "scores", [float("nan")] * 512, "not finite"),
    (SPM, "token_type", [1] * 513, "token_type has 513 entries"),
    (SPM, "token_type", [99] * 512, "token_type holds a value that is not 1 to 6"),
    (SPM, "token_type", np.full(512, np.nan), "token_type holds a value that is not 1 to 6"),
    (SPM, "token_type", np.full(512, np.inf), "token_type holds a value that is not 1 to 6"),
    (SPM, "token_type", [1.5] * 512, "token_type holds a value that is not 1 to 6"),
    (SPM, "eos_token_id", np.array([2, 3]), "eos_token_id is array.*, not a token id"),
    (SPM, "eos_token_id", np.array([], np.uint32), "eos_token_id is array.*, not a token id"),
    (SPM, "unknown_token_id", [], "unknown_token_id is .*, not a token id"),
    (BPE, "bos_token_id", 1.0, "bos_token_id is 1.0, not a token id"),
    (BPE, "add_bos_token", np.zeros(2000), "add_bos_token is array.*, not true or false"),
    (SPM, "bos_token_id", 512, "bos_token_id is 512, outside 0 to 511"),
    (SPM, "eos_token_id", -2, "eos_token_id is -2, not a token id"),
    (SPM, "eot_token_id", "x", "eot_token_id is 'x', not a token id"),
    (SPM, "add_bos_token", 2, "add_bos_token is 2, not true or false"),
    (SPM, "add_space_prefix", "no", "add_space_prefix is 'no'"),
    (BPE, "merges", GONE, "tokenizer.ggml.merges is missing"),
    (BPE, "merges", ["zz qq"], r"merges\[0\] is 'zz qq', but 'zz' is not among"),
    (BPE, "merges", ["ab"], r"merges\[0\] is 'ab'"),
    (BPE, "merges", [1], r"merges\[0\] is not a string"),
    (BPE, "pre", GONE, "tokenizer.ggml.pre is missing; known: default, gpt-2"),
    (BPE, "pre", "qwen-2", "did you mean 'qwen2'.*known: default, gpt-2"),
]


@pytest.mark.parametrize(("good", "key", "value", "message"), CASES)
def test_gguf_metadata(good: dict[str, Any], key: str, value: Any, message: str) -> None:
    metadata = {k: v for k, v in good.items() if k != f"tokenizer.ggml.{key}"}
    if value is not GONE:
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(metadata)
    assert "\n" not in str(caught.value)


def test_bytes_without_pieces_need_an_unknown_token() -> None:
    metadata = {k: v for k, v in SPM.items() if k != "tokenizer.ggml.unknown_token_id"}
    types = [1 if t == 6 else t for t in metadata["tokenizer.ggml.token_type"]]
    with pytest.raises(CheckpointError, match="no piece for byte 0x00"):
        load_tokenizer(metadata | {"tokenizer.ggml.token_type": types})


def test_what_is_merely_unusual_is_read() -> None:
    numpy = {
        "tokenizer.ggml.scores": np.array(SPM["tokenizer.ggml.scores"], np.float32),
        "tokenizer.ggml.token_type": np.array(SPM["tokenizer.ggml.token_type"], np.int32),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.padding_token_id": 0xFFFFFFFF,
        "tokenizer.ggml.eot_token_id": 0xFFFFFFFF,
    }
    assert load_tokenizer(SPM | numpy).encode("Lily") == load_tokenizer(SPM).encode("Lily")


JSON_CASES = [
    ("tokenizer.json", b"{", "not a readable tokenizer"),
    ("tokenizer.json", b"\xff\xfe", "not a readable tokenizer"),
    ("tokenizer.json", b'{"model": {"type": "BPE"}}', "not a readable tokenizer"),
    ("tokenizer_config.json", b"[1]", "found an array"),
    ("tokenizer_config.json", b"{" * 100_000, "not valid JSON"),
    ("tokenizer_config.json", b"\xff", "not valid JSON"),
    ("tokenizer_config.json", b'{"eos_token": "a", "eos_token": "b"}', "'eos_token' appears twice"),
    ("tokenizer_config.json", b"[" + b"1," * (5 << 20) + b"1]", "more than .* JSON values"),
    ("tokenizer_config.json", b'{"bos_token": "\\ud800"}', "bos_token '.ud800' is not in the"),
    ("tokenizer_config.json", b'{"bos_token": "\\u001b[2J"}', "bos_token '.x1b.2J' is not in the"),
    ("tokenizer_config.json", b'{"eos_token": "<nope>"}', "eos_token '<nope>' is not in the"),
    ("tokenizer_config.json", b'{"add_bos_token": "yes"}', None),
    (
        "tokenizer_config.json",
        b'{"bos_token": "<|start|>", "add_bos_token": "yes"}',
        "add_bos_token is 'yes'",
    ),
    ("tokenizer_config.json", b'{"added_tokens_decoder": {"9": {"content": "<x>"}}}', "the id 9"),
    ("tokenizer_config.json", b'{"added_tokens_decoder": {"9": {}}}', "has no content"),
    ("tokenizer_config.json", b'{"added_tokens_decoder": [1]}', "not an object of token ids"),
    (
        "tokenizer_config.json",
        b'{"added_tokens_decoder": {"' + b"9" * 5000 + b'": {"content": "<x>"}}}',
        "not an object of token ids",
    ),
    (
        "tokenizer_config.json",
        b'{"added_tokens_decoder": {"483": {"content": "\\udc00"}}}',
        "has no content of Unicode",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), JSON_CASES)
def test_json_files(tmp_path: Path, name: str, content: bytes, message: str | None) -> None:
    shutil.copytree(FIXTURES / "tiny-bpe", tmp_path / "model")
    (tmp_path / "model" / name).write_bytes(content)
    if message is None:
        load_tokenizer(tmp_path / "model")
        return
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(tmp_path / "model")
    assert "\n" not in str(caught.value) and name in str(caught.value)


WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "<unk>"}
UNIGRAM = {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": None}
SLOW_SPLIT = {
    "type": "Split",
    "pattern": {"Regex": "(a+)+$"},
    "behavior": "Isolated",
    "invert": False,
}
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
NAMES_NOTHING = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<nope>", "type_id": 0}}, SEQUENCE],
    "pair": [SEQUENCE, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}
BROKEN_MAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def tokenizer_json(path: Path, **parts: Any) -> Path:
    (path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": WORDS} | parts))
    return path


@pytest.mark.parametrize("parts", [{"normalizer": BROKEN_MAP}, {"post_processor": NAMES_NOTHING}])
def test_a_library_that_panics_at_load(tmp_path: Path, parts: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a readable tokenizer"):
        load_tokenizer(tokenizer_json(tmp_path, **parts))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "zebra"),
        ({"model": UNIGRAM}, "zebra"),
        ({"pre_tokenizer": SLOW_SPLIT}, "a" * 40 + "b"),
    ],
)
@pytest.mark.parametrize("parse_special", [False, True])
def test_a_text_the_library_fails_on(
    tmp_path: Path, parts: dict[str, Any], text: str, parse_special: bool
) -> None:
    tokenizer = load_tokenizer(tokenizer_json(tmp_path, **parts))
    with pytest.raises(RequestError) as refused:
        tokenizer.encode(text, parse_special=parse_special)
    assert (
        str(refused.value) == "prompt: the model's tokenizer cannot encode it"
    )  # no word of Rust's
    (note,) = refused.value.__notes__
    assert refused.value.path == "prompt" and note.isprintable() and len(note) > 20
    assert tokenizer.encode("a") == [0]  # a panic leaves it usable


def test_ids_the_library_fails_on(tmp_path: Path) -> None:
    decoder = {"type": "Strip", "content": "a", "start": 3, "stop": 3}
    tokenizer = load_tokenizer(tokenizer_json(tmp_path, decoder=decoder))
    with pytest.raises(CheckpointError, match="decoder fails"):
        tokenizer.decode([0, 1])


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_pass_the_guard(interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt), catch_faults(make_encoding_error):
        raise interrupt


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tokenizer_json(tmp_path) / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_tokenizer(tmp_path)


def test_no_tokenizer_here(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer here; looked for tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_configuration_files_are_read(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "tiny-bpe", tmp_path / "model")
    config = {
        "eos_token": "<|stop|>",
        "added_tokens_decoder": {"483": {"content": "<|stop|>", "special": True}},
        "chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}],
    }
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(config))
    names = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    (tmp_path / "model" / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = load_tokenizer(tmp_path / "model")
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (480, (483,), 484)
    assert tokenizer.chat_template == "d" and not tokenizer.add_bos
    assert tokenizer.encode("a<|stop|>")[-1] == 483
    (tmp_path / "model" / "chat_template.jinja").write_text("file")
    assert load_tokenizer(tmp_path / "model").chat_template == "file"


def test_a_merge_that_makes_no_piece_is_left_out() -> None:
    """Published files hold such merges, and other engines run them."""
    plain = load_tokenizer(BPE)
    merges = [*list(BPE["tokenizer.ggml.merges"]), "a a"]  # type: ignore[call-overload]
    extra = load_tokenizer({**BPE, "tokenizer.ggml.merges": merges})
    assert "aa" not in list(BPE["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    assert extra.encode("aaa banana") == plain.encode("aaa banana")
