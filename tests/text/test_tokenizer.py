"""Both GGUF kinds and tokenizer.json against slow merges written from their definitions."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_vocabularies import FIXTURES, bpe_metadata, spm_metadata

from flyweight.text.codec import BYTE_OF
from flyweight.text.tokenizer import Tokenizer, load_tokenizer

TEXT = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="abehlnost  .,'\n\u2581", max_size=120),
    st.lists(
        st.sampled_from(
            ["Once upon", " a time", "Lily", "  ", "\n", "🙂", "世界", "é", "e\u0301", "<s>", "."]
        ),
        max_size=20,
    ).map("".join),
)


def merge_by_score(text: str, ids: dict[str, int], scores: list[float]) -> list[str]:
    """The definition: join the best pair, leftmost among equals, until none is a piece."""
    symbols = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        pairs = [(symbols[i] + symbols[i + 1], i) for i in range(len(symbols) - 1)]
        known = [(-scores[ids[pair]], i) for pair, i in pairs if pair in ids]
        if not known:
            return symbols
        at = min(known)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@settings(deadline=None, max_examples=100)
@given(TEXT)
def test_spm_ids_follow_the_definition(spm: Tokenizer, text: str) -> None:
    metadata = spm_metadata()
    pieces = metadata["tokenizer.ggml.tokens"]
    ids = {piece: i for i, piece in enumerate(pieces) if i >= 259}
    expected: list[int] = [1]
    for symbol in merge_by_score(text, ids, metadata["tokenizer.ggml.scores"]):
        expected += [ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()]
    assert spm.encode(text, parse_special=False) == expected


def merge_by_rank(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    symbols = list(word)
    while True:
        pairs = list(pairwise(symbols))
        known = [(ranks[pair], i) for i, pair in enumerate(pairs) if pair in ranks]
        if not known:
            return symbols
        at = min(known)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


ASCII_WORDS = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
)


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="abcdehlnorstTy'.!?0123  \n\t", max_size=100))
def test_byte_level_ids_follow_the_definition(bpe: Tokenizer, text: str) -> None:
    metadata = bpe_metadata()
    ids = {piece: i for i, piece in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(metadata["tokenizer.ggml.merges"])}
    spelled = {byte: character for character, byte in BYTE_OF.items()}
    words = ["".join(spelled[b] for b in word.encode()) for word in ASCII_WORDS.findall(text)]
    expected = [ids[piece] for word in words for piece in merge_by_rank(word, ranks)]
    assert bpe.encode(text, add_special=False, parse_special=False) == expected


@settings(deadline=None, max_examples=100)
@given(TEXT, st.booleans(), st.booleans())
def test_gguf_and_json_forms_of_one_vocabulary_agree(
    bpe: Tokenizer, text: str, add: bool, parse: bool
) -> None:
    json_form = load_tokenizer(FIXTURES / "tiny-bpe")
    text = text + "<|end|>" + text + "<think>"
    ids = bpe.encode(text, add, parse)
    assert ids == json_form.encode(text, add, parse)
    for skip in (True, False):
        assert bpe.decode(ids, skip) == json_form.decode(ids, skip)
    assert all(bpe.token_bytes(i) == json_form.token_bytes(i) for i in range(bpe.vocab_size))


@settings(deadline=None, max_examples=100)
@given(text=TEXT)
def test_a_text_comes_back(spm: Tokenizer, bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text, parse_special=False)) == text
    plain = text.replace("\u2581", " ")  # SPM spells a space so, and cannot tell them apart
    assert spm.decode(spm.encode(plain, parse_special=False)) == plain


def test_marks(spm: Tokenizer, bpe: Tokenizer) -> None:
    json_form = load_tokenizer(FIXTURES / "tiny-bpe")
    assert (spm.vocab_size, spm.bos_id, spm.eos_ids, spm.add_bos) == (512, 1, (2,), True)
    assert spm.special_ids == {0, 1, 2}
    assert (bpe.vocab_size, bpe.bos_id, bpe.eos_ids, bpe.add_bos) == (483, 480, (481,), True)
    assert bpe.marks.special_ids == json_form.marks.special_ids == {480, 481}
    assert json_form.marks.bos_id == 480 and json_form.marks.add_bos
    assert json_form.chat_template == "{{ messages }}"
    assert spm.piece(403) == "\u2581Once" and spm.token_bytes(403) == b" Once"
    assert spm.piece(512) == bpe.piece(-1) == "" and spm.token_bytes(512) == b""
    assert spm.token_bytes(1) == b"" and spm.token_bytes(1, special=True) == b"<s>"
    assert spm.token_bytes(3 + 0x0A) == b"\n"


def test_eos_is_the_union_of_eos_eot_eom() -> None:
    metadata = bpe_metadata() | {
        "tokenizer.ggml.eot_token_id": 482,
        "tokenizer.ggml.eom_token_id": 480,
    }
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.eos_ids == (480, 481, 482)
    assert 482 in tokenizer.special_ids


@pytest.mark.parametrize(
    ("kind", "count", "around"),
    [("llama", 512, ([1], [])), ("t5", 512, ([], [1])), ("bert", 512, ([101], [102]))],
)
def test_what_goes_around_a_text_where_the_file_does_not_say(
    kind: str, count: int, around: tuple[list[int], list[int]]
) -> None:
    said = ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token", "add_eos_token")
    metadata = {k: v for k, v in spm_metadata().items() if not k.endswith(said)}
    metadata["tokenizer.ggml.model"] = kind
    tokenizer = load_tokenizer(metadata)
    inside = tokenizer.encode("time", add_special=False)
    assert tokenizer.encode("time") == [*around[0], *inside, *around[1]]
    no_bos = load_tokenizer(metadata | {"tokenizer.ggml.add_bos_token": False})
    assert no_bos.encode("time") == [*inside, *around[1]]


def test_special_tokens_are_read_only_when_requested(spm: Tokenizer, bpe: Tokenizer) -> None:
    assert bpe.encode("a<|end|>b")[2:3] == [481]
    assert 481 not in bpe.encode("a<|end|>b", parse_special=False)
    assert 482 in bpe.encode("a<think>b", parse_special=False)  # user-defined: plain text
    assert spm.encode("</s>", add_special=False) == [2]
    assert not {0, 1, 2} & set(spm.encode("<s></s><unk>", False, parse_special=False))
    assert spm.encode("") == [1] and spm.encode("", add_special=False) == []


def test_the_longest_special_token_wins(spm: Tokenizer) -> None:
    metadata = spm_metadata()
    types, pieces = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.tokens"]
    pieces[508:511] = ["<a", "<a>", "<a>b"]
    types[508:511] = [4, 4, 3]
    tokenizer = load_tokenizer(metadata)
    time = spm.encode("time", add_special=False)
    assert tokenizer.encode("<a><a<a>btime", False) == [509, 508, 510, *time]
    assert tokenizer.encode("<a>btime", False, parse_special=False)[0] == 509
    assert tokenizer.decode([509, 510, *time]) == "<a> time"


def test_public_story_prompt(spm: Tokenizer) -> None:
    assert spm.encode("Once upon a time") == [1, 403, 407, 261, 378]


def test_space_prefix_and_eos_flags() -> None:
    flags = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_eos_token": True}
    tokenizer = load_tokenizer(spm_metadata() | flags)
    ids = tokenizer.encode("time")
    assert ids[-1] == 2 and tokenizer.decode(ids) == "time"
    assert tokenizer.decode(tokenizer.encode(" time")) == " time"


def test_lone_surrogates_become_replacement_characters(spm: Tokenizer, bpe: Tokenizer) -> None:
    for tokenizer in (spm, bpe):
        assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


@pytest.mark.parametrize("text", ["lo" * 20_000, " Lily" * 20_000, "世" * 20_000])
def test_long_texts_come_back(spm: Tokenizer, text: str) -> None:
    assert spm.decode(spm.encode(text)) == text
