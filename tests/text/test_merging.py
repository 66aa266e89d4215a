"""Native merging against the `tokenizers` library, on vocabularies nobody would publish, and lists
of strings that are not decoded until requested.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from flyweight import _native
from flyweight.text.gguf_bpe import BYTE, PIECE
from flyweight.validation.strings import Strings

ALPHABET = "abcé\U0001f642"


def native(
    pieces: Sequence[str], merges: Sequence[str], whole: bool, fallback: bool
) -> _native.Bpe:
    found, pairs = Strings.of(pieces), Strings.of(merges)
    uses = np.array([BYTE if piece.startswith("<0x") else PIECE for piece in pieces], np.uint8)
    model = _native.Bpe(found.raw, found.begin, found.end, uses, whole, fallback)
    assert model.add_merges(pairs.raw, pairs.begin, pairs.end) == -1
    return model


def library(pieces: Sequence[str], merges: Sequence[str], whole: bool, fallback: bool) -> Tokenizer:
    ids = {piece: i for i, piece in enumerate(pieces)}
    pairs = [(left, right) for left, right in map(str.split, merges) if left + right in ids]
    model = models.BPE(
        vocab=ids, merges=pairs, ignore_merges=whole, byte_fallback=fallback, fuse_unk=False
    )
    return Tokenizer(model)


def vocabulary(rng: random.Random) -> tuple[list[str], list[str]]:
    """Pieces with duplicates, some characters missing; merges said twice, or without a result."""
    pieces = rng.sample(ALPHABET, rng.randint(2, len(ALPHABET)))
    pieces += [f"<0x{byte:02X}>" for byte in rng.sample(range(256), rng.choice([0, 128, 256]))]
    merges = []
    for _ in range(rng.randint(0, 40)):
        plain = [piece for piece in pieces if not piece.startswith("<0x")]
        left, right = rng.choice(plain), rng.choice(plain)
        merges.append(f"{left} {right}")
        if rng.random() < 0.9:
            pieces.append(left + right)
    return pieces, merges


@given(
    st.randoms(use_true_random=False),
    st.lists(st.text(ALPHABET + "d\u00fc", min_size=1, max_size=30), max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_ids_are_the_librarys(
    rng: random.Random, words: list[str], whole: bool, fallback: bool
) -> None:
    given = *vocabulary(rng), whole, fallback
    known = [piece for piece in given[0] if not piece.startswith("<0x")]
    words += [rng.choice(known) for _ in range(2)]
    model, theirs = native(*given), library(*given)
    expected = [i for word in words for i in theirs.encode(word).ids]
    assert model.encode(words) == expected


def test_qwens_vocabulary_gives_the_librarys_ids(data: Callable[[str], Path]) -> None:
    """Every word of a book, its spelling byte by byte."""
    ids = json.loads(data("tokenizer-qwen2/vocab.json").read_text(encoding="utf-8"))
    merges = data("tokenizer-qwen2/merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    given = sorted(ids, key=ids.__getitem__), merges, False, False
    model, theirs = native(*given), library(*given)
    text = data("text-tinyshakespeare/tinyshakespeare.txt").read_text(encoding="utf-8")
    words = sorted({"Ġ" + word for word in text.split()} | {"日" * 40, "a" * 300})
    assert len(words) > 20000
    assert model.encode(words) == [i for word in words for i in theirs.encode(word).ids]


def test_the_first_merge_of_what_is_no_piece_is_named() -> None:
    pieces, merges = Strings.of(["a", "b", "ab"]), Strings.of(["a b", "ab c", "x y"])
    uses = np.full(3, PIECE, np.uint8)
    model = _native.Bpe(pieces.raw, pieces.begin, pieces.end, uses, False, False)
    assert model.add_merges(merges.raw, merges.begin, merges.end) == 1


def test_strings_beyond_their_bytes_are_refused() -> None:
    raw, begin = np.zeros(4, np.uint8), np.array([0, 3], np.int64)
    uses = np.ones(2, np.uint8)
    for end in ([2, 5], [2, 2], [-1, 4]):
        with pytest.raises(ValueError, match="beyond its bytes"):
            _native.Bpe(raw, begin, np.array(end, np.int64), uses, False, False)
    with pytest.raises(ValueError, match="as many ends"):
        _native.Bpe(raw, begin, np.zeros(1, np.int64), uses, False, False)
    with pytest.raises(ValueError, match="use for every piece"):
        _native.Bpe(raw, begin, begin, np.ones(1, np.uint8), False, False)


@given(st.lists(st.text(max_size=5)))
def test_strings_are_the_list_they_stand_for(values: list[str]) -> None:
    found = Strings.of(values)
    assert found == values and list(found) == values and found[:] == values
    assert [found[i] for i in range(len(values))] == values and found.malformed() == -1
    packed = b"".join(len(raw).to_bytes(8, "little") + raw for raw in (v.encode() for v in values))
    raw = np.frombuffer(b"??" + packed, np.uint8)
    assert Strings.scan(raw, 2, len(values), 100) == values


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=6), max_size=4))
def test_malformed_strings_are_found_as_python_finds_them(values: list[bytes]) -> None:
    def broken(raw: bytes) -> bool:
        try:
            return raw.decode() is None
        except UnicodeDecodeError:
            return True

    found = Strings.of([raw.decode("utf-8", "surrogateescape") for raw in values])
    assert found.malformed() == next((i for i, raw in enumerate(values) if broken(raw)), -1)
    assert [value.encode("utf-8", "surrogateescape") for value in found] == values


def test_a_scan_stops_where_a_string_is_cut_short_or_too_long() -> None:
    raw = np.frombuffer((3).to_bytes(8, "little") + b"abc" + (9).to_bytes(8, "little"), np.uint8)
    for count in (1, 2, 1 << 40):
        assert Strings.scan(raw, 0, count, 100) == ["abc"]
    assert Strings.scan(raw, 0, 2, 2) == []
    for at in (-1, len(raw) + 1):
        with pytest.raises(ValueError, match="beyond the bytes"):
            Strings.scan(raw, at, 1, 100)
