"""Streaming equals the full decode cut at the stop, for any split of the ids over pushes."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import PHRASES, check, random_ids, seeded, stream

from flyweight.text.detokenizer import Detokenizer
from flyweight.text.tokenizer import Tokenizer


def test_small_vocabularies(small: Tokenizer) -> None:
    seeded(400, lambda draw: check(small, draw))


def test_after_a_prompt_the_text_continues(small: Tokenizer) -> None:
    def continues(draw: Random) -> None:
        prompt = small.encode("".join(draw.choices(PHRASES, k=draw.randint(0, 3))))
        ids = random_ids(small, draw)
        before, full = small.decode(prompt), small.decode(prompt + ids)
        text = stream(Detokenizer(small, prompt), ids, draw)
        if full.startswith(before):  # a later bad byte may spoil what a library made of a run
            assert text == full[len(before) :]

    seeded(200, continues)


@pytest.mark.parametrize("name", ["spm", "bpe"])
@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet=st.sampled_from("aé世🙂 \n\u0301"), max_size=12))
def test_text_is_shown_as_soon_as_it_is_whole(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    detokenizer = Detokenizer(tokenizer)
    seen: list[int] = []
    for token in tokenizer.encode(text, add_special=False):
        seen.append(token)
        detokenizer.push([token])
        assert detokenizer.text == tokenizer.decode(seen).rstrip("\ufffd")


def test_a_prompt_may_end_inside_a_character(spm: Tokenizer, bpe: Tokenizer) -> None:
    for tokenizer in (spm, bpe):
        ids = tokenizer.encode("x🦜y", add_special=False)
        cut = next(i for i in range(len(ids)) if tokenizer.decode(ids[:i]).endswith("\ufffd"))
        detokenizer = Detokenizer(tokenizer, ids[:cut])
        assert detokenizer.push(ids[cut:]) + detokenizer.finish() == "🦜y"


def test_leading_space(spm: Tokenizer) -> None:
    once = spm.encode("Once", add_special=False)
    assert Detokenizer(spm, [1]).push(once) == "Once"
    assert Detokenizer(spm, [1, *once]).push(once) == " Once"
    assert Detokenizer(spm, [], skip_special=False).push([1, *once]) == "<s> Once"


def test_stop_is_held_back_and_released(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop=("abc", "b!"))
    letters = [bpe.encode(letter, add_special=False)[0] for letter in "xabab!c"]
    shown = [detokenizer.push([token]) for token in letters]
    assert shown == ["x", "", "", "ab", "", "a", ""]
    assert (detokenizer.stopped, detokenizer.pushed) == ("b!", 6)
    assert detokenizer.finish() == "" and detokenizer.text == "xaba"


def test_stop_may_end_inside_a_token(bpe: Tokenizer) -> None:
    ids = bpe.encode("they all said that", add_special=False)
    detokenizer = Detokenizer(bpe, stop=("th", "sa"), include_stop=True)
    assert detokenizer.push(ids) == "th"
    assert bpe.decode(ids[: detokenizer.pushed]).startswith("th")


def test_ties_go_to_the_longest(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop=("b", "ab", "bc"))
    assert detokenizer.push(bpe.encode("xabc", add_special=False)) == "x"
    assert detokenizer.stopped == "ab"


def test_unfinished_bytes_end_as_a_replacement_character(spm: Tokenizer, bpe: Tokenizer) -> None:
    for tokenizer in (spm, bpe):
        ids = tokenizer.encode("a🦜", add_special=False)[:-1]
        detokenizer = Detokenizer(tokenizer)
        assert detokenizer.push(ids) == "a"
        assert detokenizer.finish() == tokenizer.decode(ids)[1:] == "\ufffd"


WORDS = st.text(alphabet="ab!", min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(
    text=st.text(alphabet="ab!", max_size=12),
    stop=st.lists(WORDS, min_size=1, max_size=3),
    least=st.integers(0, 8),
)
def test_a_stop_that_is_whole_among_the_first_ids_does_not_count(
    bpe: Tokenizer, text: str, stop: list[str], least: int
) -> None:
    """Whatever other stop strings hold back: the first end beyond the first `least` letters."""
    letters = [bpe.encode(letter, add_special=False)[0] for letter in text]
    detokenizer = Detokenizer(bpe, stop=stop, least=least)
    got = "".join(detokenizer.push([letter]) for letter in letters) + detokenizer.finish()
    ends = (end for end in range(least + 1, len(text) + 1) if text[:end].endswith(tuple(stop)))
    end = next(ends, None)
    if end is None:
        assert (got, detokenizer.stopped) == (text, None)
    else:
        word = max((w for w in stop if text[:end].endswith(w)), key=len)
        assert (got, detokenizer.stopped) == (text[: end - len(word)], word)
