"""Strings among sampling options, as ids of the story model's vocabulary."""

import pytest

from flyweight.errors import RequestError
from flyweight.text.words import Lexicon
from flyweight.types import DRY_BREAKERS, SamplingParams


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    from flyweight.describe import ASSETS, describe

    found = describe(ASSETS / "stories.gguf")
    return Lexicon(found.tokenizer, found.spec.vocab)


def test_bad_words_with_and_without_a_space(lexicon: Lexicon) -> None:
    words = lexicon.encode_words(SamplingParams(bad_words=["little", " little", "girl"]))
    encode = lexicon.tokenizer.encode
    assert words.bad == tuple(
        tuple(encode(text, add_special=False)) for text in ("little", " little", "girl", " girl")
    )
    assert words.breakers == frozenset()


def test_breakers_are_tokens_that_hold_one(lexicon: Lexicon) -> None:
    params = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=["\n", "gir"])
    found = lexicon.encode_words(params).breakers
    texts = {lexicon.tokenizer.token_bytes(id) for id in found}
    assert b"\n" in texts and any(b"girl" in text for text in texts)
    assert all(b"\n" in text or b"gir" in text for text in texts)
    assert lexicon.encode_words(params).breakers is found, "the vocabulary is not read twice"


def test_breakers_no_token_holds(lexicon: Lexicon) -> None:
    with pytest.raises(RequestError, match=r"dry_sequence_breakers = 'once upon' is in no token"):
        lexicon.encode_words(
            SamplingParams(dry_multiplier=1, dry_sequence_breakers=["\n", "once upon"])
        )
    assert lexicon.encode_words(SamplingParams(dry_multiplier=1)).breakers, DRY_BREAKERS
    for i in range(20):  # what is remembered has an end
        lexicon.encode_words(SamplingParams(dry_multiplier=1, dry_sequence_breakers=[chr(97 + i)]))
    assert len(lexicon._breakers) <= 8
