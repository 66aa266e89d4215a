"""Damaged vocabulary files: read, or refused with a `CheckpointError` of one line that names the
file; and what lies next to a vocabulary.
"""

import json
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from text_vocabularies import FIXTURES, bpe_metadata

from flyweight.errors import CheckpointError, RequestError
from flyweight.text.tokenizer import load_tokenizer
from flyweight.text.vocabulary_files import read_fields

GOLDEN = FIXTURES / "golden"


def survives(path: Path) -> bool:
    """Whether a file is read; its tokenizer then encodes, or says why not."""
    try:
        tokenizer = load_tokenizer(path)
    except CheckpointError as error:
        assert path.name in str(error) or "tokenizer.ggml" in str(error)
        assert str(error).isprintable()
        return False
    try:
        tokenizer.decode(tokenizer.encode("Once upon a <s> é 🙂"))
    except RequestError as error:
        assert str(error).isprintable()
    return True


@pytest.mark.parametrize("name", ["unigram.model", "bpe-bytes.model", "vocab.txt", "tekken.json"])
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_refused_or_harmless(tmp_path: Path, name: str, data: st.DataObject) -> None:
    raw = bytearray((GOLDEN / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    path = tmp_path / name
    path.write_bytes(raw[: data.draw(st.integers(1, len(raw)))])
    survives(path)


@pytest.mark.parametrize("name", ["unigram.model", "bpe.model"])
def test_a_file_cut_short(tmp_path: Path, name: str) -> None:
    raw = (GOLDEN / name).read_bytes()
    path = tmp_path / name
    read = 0
    for size in range(1, len(raw), 97):
        path.write_bytes(raw[:size])
        read += survives(path)
    assert read < len(range(1, len(raw), 97)) // 2


@pytest.mark.parametrize(
    "message", [b"\x0a\x05ab", b"\x80" * 11, b"\x0b", b"\x0a\xff\xff\xff\xff\x0f", b"\x15ab"]
)
def test_fields_that_do_not_fit(message: bytes) -> None:
    with pytest.raises(CheckpointError):
        list(read_fields(message))


def ranks(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


def test_files_of_ranks(tmp_path: Path) -> None:
    line = b64encode(b"a") + b" 0"
    with pytest.raises(CheckpointError, match=r"1 ranks; known: 50256 \(r50k_base\)"):
        load_tokenizer(ranks(tmp_path / "x.tiktoken", [line]))
    for bad in (b"YQ==", b"YQ== x", b"Y! 1", b"YQ== 1 2"):
        with pytest.raises(CheckpointError, match=r"line 2 is .*not base64, a space and a rank"):
            load_tokenizer(ranks(tmp_path / "x.tiktoken", [line, bad]))
    far = [b64encode(b"%d" % i) + b" %d" % i for i in range(100255)]
    with pytest.raises(CheckpointError, match="a rank is outside 0 to"):
        load_tokenizer(ranks(tmp_path / "x.tiktoken", [*far, line.replace(b" 0", b" 99999999")]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {}}, r"tekken\.json \(KeyError"),
        ({"vocab": [{"rank": 0, "token_bytes": "!"}]}, "not a readable tekken"),
        ({"special_tokens": [{"rank": 900, "token_str": "<s>"}]}, "special token is outside 0 to"),
    ],
)
def test_tekken_files(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    content = json.loads((GOLDEN / "tekken.json").read_text())
    (tmp_path / "tekken.json").write_text(json.dumps(content | change))
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(tmp_path)


def test_a_tekken_file_without_its_special_tokens_has_the_first_ones(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "tekken.json").read_text())
    del content["special_tokens"]
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("[INST]a")[:2] == [1, 3] and tokenizer.eos_ids == (2,)
    assert tokenizer.piece(7) == "[TOOL_RESULTS]"


def test_which_pattern_is_in_the_file(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "tekken.json").read_text())
    content["config"]["pattern"] = "("
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"pattern '\('"):
        load_tokenizer(tmp_path)


def test_merges_without_anyone_to_say_how_texts_are_cut(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(CheckpointError, match="nothing to say how texts are cut; known"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenise"}')
    with pytest.raises(CheckpointError, match="did you mean 'Qwen2Tokenizer'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2TokenizerFast"}')
    assert load_tokenizer(tmp_path).encode("ab a") == [2, 0]


def test_files_next_to_a_vocabulary(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "bpe-bytes.model", tmp_path / "tokenizer.model")
    plain = load_tokenizer(tmp_path)
    count = plain.vocab_size
    config = {
        "added_tokens_decoder": {
            str(count + 1): {"content": "<|im_end|>", "special": True},
            str(count): {"content": "<tool>", "special": False},
        },
        "eos_token": {"content": "<|im_end|>"},
        "add_bos_token": False,
        "chat_template": "{{ messages }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == count + 2 and not tokenizer.add_bos and plain.add_bos
    assert tokenizer.encode("<tool><|im_end|>") == [count, count + 1]
    assert tokenizer.encode("<tool><|im_end|>", parse_special=False)[0] == count
    assert tokenizer.eos_id == count + 1 and count + 1 in tokenizer.eos_ids
    assert tokenizer.decode([count, count + 1]) == "<tool>"
    assert tokenizer.chat_template == "{{ messages }}"
    for change, message in (
        ({"eos_token": "<nope>"}, "eos_token '<nope>' is not in the vocabulary"),
        ({"added_tokens_decoder": {"5": {"content": "x"}}}, "gives 'x' the id 5, which is"),
        ({"added_tokens_decoder": {"9999999": {"content": "x"}}}, "far past the vocabulary"),
        ({"add_bos_token": 1}, "add_bos_token is 1, not true or false"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=message):
            load_tokenizer(tmp_path)


def test_tokens_that_end_a_turn() -> None:
    metadata = bpe_metadata()
    pieces = metadata["tokenizer.ggml.tokens"]
    names = ["<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "plain"]

    def ends(names: list[str]) -> list[str]:
        more = {
            "tokenizer.ggml.tokens": [*pieces[:480], "<|start|>", "<eos>", *names],
            "tokenizer.ggml.token_type": [1] * 480 + [3] * (2 + len(names)),
        }
        tokenizer = load_tokenizer(metadata | more)
        return [tokenizer.piece(i) for i in tokenizer.eos_ids]

    assert ends(names[:2]) == ["<eos>", "<|im_end|>", "<|end|>"]
    assert ends(names) == ["<eos>", "<|im_end|>", "<|return|>", "<|call|>"]


def test_pieces_of_text_instead_of_bytes() -> None:
    """Gemma 4's kind of BPE: spaces as U+2581, bytes by name, lines apart."""
    pieces = ["<bos>", *(f"<0x{i:02X}>" for i in range(256)), *"▁abc\n", "ab", "▁ab", "\n\n"]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3] + [6] * 256 + [1] * 8,
        "tokenizer.ggml.merges": ["a b", "▁ ab"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode("ab abc\n\né")
    spelled = [tokenizer.piece(i) for i in ids]
    assert spelled == ["<bos>", "ab", "▁ab", "c", "\n\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "ab abc\n\né" and tokenizer.add_bos
