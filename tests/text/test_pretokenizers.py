"""Every pre-tokenizer by name: its patterns cut as another regular expression engine cuts, and
nothing of a text is lost.
"""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.text.codec import BYTE_OF
from flyweight.text.pretokenizers import PRE_TOKENIZERS, make_normalizer, make_splitter, split_text

CUTS = json.loads(
    (Path(__file__).parents[1] / "data/text/golden/cuts.json").read_text(encoding="utf-8")
)
(TEXTS,) = CUTS.pop("texts")
KNOWN = {  # of llama.cpp's list
    "default", "gpt-2", "llama-bpe", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon",
    "falcon3", "mpt", "starcoder", "jais", "refact", "command-r", "qwen2", "qwen35", "stablelm2",
    "olmo", "dbrx", "smaug-bpe", "poro-chat", "chatglm-bpe", "viking", "tekken", "smollm",
    "codeshell", "bloom", "gpt3-finnish", "exaone", "exaone4", "chameleon", "minerva-7b", "megrez",
    "gpt-4o", "superbpe", "trillion", "granite-docling", "bailingmoe", "llama4", "seed-coder",
    "a.x-4.0", "midm-2.0", "lfm2", "hunyuan", "hunyuan-dense", "kimi-k2", "grok-2", "afmoe",
    "roberta-bpe", "phi-2", "glm4", "pixtral", "llama3", "llama-v3", "deepseek-r1-qwen",
    "gigachat", "modern-bert", "jina-v2-code", "minimax-m2", "solar-open", "exaone-moe", "gemma4",
    "tiny_aya",
}  # fmt: skip
# Falcon cuts its spelling too, where published ids are the proof (test_golden_ids).
PLAIN = [name for name in CUTS if not PRE_TOKENIZERS[name].spelled]


def test_every_name_and_every_way_to_cut_is_there() -> None:
    assert set(PRE_TOKENIZERS) >= KNOWN and len(PRE_TOKENIZERS) == 89
    ways = {rules.patterns for rules in PRE_TOKENIZERS.values()}
    assert {PRE_TOKENIZERS[name].patterns for name in CUTS} == ways and len(ways) == 29 == len(
        PLAIN
    ) + 1


def words(name: str, text: str) -> list[str]:
    """A text's words, their bytes read back."""
    rules = PRE_TOKENIZERS[name]
    pieces = [word for word, _ in make_splitter(rules).pre_tokenize_str(text)]
    if rules.raw:
        return pieces
    return [bytes(BYTE_OF[c] for c in piece).decode() for piece in pieces]


@pytest.mark.parametrize("name", PLAIN)
def test_cuts_are_those_of_another_engine(name: str) -> None:
    assert [words(name, text) for text in TEXTS] == CUTS[name]


@pytest.mark.parametrize("name", CUTS)
@settings(deadline=None, max_examples=20)
@given(text=st.text(alphabet="aZé 1½\n\t\r'.,(好ก\u0301🙂/", max_size=40))
def test_nothing_is_lost(name: str, text: str) -> None:
    rules = PRE_TOKENIZERS[name]
    pieces = [word for word, _ in make_splitter(rules).pre_tokenize_str(text)]
    joined = "".join(pieces)
    whole = joined if rules.raw else bytes(BYTE_OF[c] for c in joined).decode()
    assert whole == text


FAMILIES = {repr(rules): name for name, rules in PRE_TOKENIZERS.items()}
WORDS = (
    "a Zz 's 'LL é e\u0301 1 123 1234567 ½ \u0661 . , ( !? / \u2026 好 好的 の カナ 한국 ㄱ "
    "ก \u0e01\u0e33 \u093f 🙂 \ufeff \u200b \u01c5 IMGIMGABZ <sentinel:7> ſ"
)  # fmt: skip
BLANKS = (" ", " ", " ", "\n", "\n", "\r\n", "\t", "  ", "    ", "\u3000", "\xa0", " \n ")
FRAGMENTS = st.sampled_from([*WORDS.split(), *BLANKS])


def cut(name: str, text: str) -> list[str]:
    """All that is done to a text before its words are merged."""
    rules = PRE_TOKENIZERS[name]
    prepare = make_normalizer(rules)
    text = text if prepare is None else prepare.normalize_str(text)
    return [word for word, _ in make_splitter(rules).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", FAMILIES.values())
@given(fragments=st.lists(FRAGMENTS, max_size=30), size=st.integers(1, 9))
def test_a_text_taken_apart_has_the_same_words(name: str, fragments: list[str], size: int) -> None:
    text, joints = "".join(fragments), PRE_TOKENIZERS[name].joints
    parts = list(split_text(text, re.compile(joints) if joints else None, size))
    assert "".join(parts) == text
    assert [word for part in parts for word in cut(name, part)] == cut(name, text)


def test_all_families_but_one_have_joints() -> None:
    assert {name for name, rules in PRE_TOKENIZERS.items() if not rules.joints} == {"superbpe"}
    prose = "Once upon a time there was a cat, 12 dogs and\nmore. " * 40
    for name, rules in PRE_TOKENIZERS.items():
        if rules.joints:
            longest = max(map(len, split_text(prose, re.compile(rules.joints), 100)))
            assert longest < 300, name


def test_what_is_done_before_cutting() -> None:
    def prepared(name: str, text: str) -> str:
        steps = make_normalizer(PRE_TOKENIZERS[name])
        return text if steps is None else steps.normalize_str(text)

    assert prepared("qwen2", "e\u0301") == "é" == prepared("mpt", "e\u0301")
    assert prepared("llama-bpe", "e\u0301") == "e\u0301"
    assert prepared("gemma4", "a b") == "a▁b"


LANDMARKS = {  # what sets ways to cut apart, checked by eye
    "gpt-2": ("x=1234567", ["x", "=", "1234567"]),
    "starcoder": ("x=1234", ["x", "=", "1", "2", "3", "4"]),
    "llama-bpe": ("I'LL 1234", ["I", "'LL", " ", "123", "4"]),
    "qwen2": ("a 12\n\nb", ["a", " ", "1", "2", "\n\n", "b"]),
    "gpt-4o": ("HTTPServer's", ["HTTPServer's"]),
    "tekken": ("iPhoneServer's 12", ["i", "Phone", "Server", "'s", " ", "1", "2"]),
    "deepseek-v3": ("a.b 你好 1234", ["a", ".b", " ", "你好", " ", "123", "4"]),
    "afmoe": ("1234567", ["1", "234", "567"]),
    "superbpe": ("a b 1234567", ["a b ", "1", "234", "567"]),
    "viking": ("no (12).", ["no", " (", "1", "2", ")."]),
    "bloom": ("no, 12 x", ["no", ",", " 12", " x"]),
    "kimi-k2": ("Hi世界ok", ["Hi", "世界", "ok"]),
    "chameleon": ("a  b 12", ["a", "  ", "b", " ", "1", "2"]),
    "jais-2": ("a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
    "gemma4": ("a b\n\nc", ["a b", "\n\n", "c"]),
    "youtu": ("한국어x 12", ["한국어", "x", " ", "1", "2"]),
    "exaone-moe": ("two words", ["two words"]),
    "default": ("a-b 1234", ["a", "-", "b", " ", "123", "4"]),
}


@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks(name: str) -> None:
    text, expected = LANDMARKS[name]
    assert words(name, text) == expected
