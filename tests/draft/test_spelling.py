"""Tokens in the pieces of another vocabulary: every spelling has the token's bytes."""

import pytest

from flyweight.describe import ASSETS, describe
from flyweight.draft.spelling import Speller
from flyweight.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def stories() -> Tokenizer:
    return describe(ASSETS / "stories.gguf").tokenizer


def test_a_vocabulary_spells_its_own_tokens_in_few_pieces(stories) -> None:
    speller = Speller(stories, stories)
    plain = [i for i in range(stories.vocab_size) if i not in stories.special_ids]
    assert all(speller.join(speller.spell(i)) == stories.token_bytes(i) for i in plain)
    assert sum(speller.spell(i) == (i,) for i in plain) > 0.9 * len(plain)
    assert all(speller.spell(i) == (i,) for i in stories.special_ids if stories.piece(i))


def test_a_sentencepiece_vocabulary_is_spelled_both_ways(stories, data) -> None:
    other = describe(data("stories260k/stories260K-f32.gguf")).tokenizer
    there, back = Speller(stories, other), Speller(other, stories)
    for text in ("Once upon a time, there was", " ran.\nThe end", "tle dog", "\n"):
        ids = stories.encode(text, add_special=False)
        pieces = [piece for i in ids for piece in there.spell(i)]
        assert there.join(pieces) == text.encode()
        assert back.join(back.encode(text.encode())) == text.encode()
    assert there.spell(stories.encode(" there", add_special=False)[0])
    assert other.piece(there.spell(stories.encode(" was", add_special=False)[0])[0]) == "\u2581was"


def test_bytes_without_a_piece_have_no_spelling(stories) -> None:
    speller = Speller(stories, stories)
    assert speller.encode(b"") == []
    assert speller.join(speller.encode(b"\xf0\x9f")) == b"\xf0\x9f"  # half a character
