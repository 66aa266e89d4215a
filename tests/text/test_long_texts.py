"""Other threads have their turn while a long text is read, from a GGUF and from tokenizer.json."""

import threading
import time
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import FIXTURES, SMALL, bpe_metadata
from tokenizers import Tokenizer as Library

from flyweight.text import library, pretokenizers
from flyweight.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer, PreTokens, make_splitter
from flyweight.text.tokenizer import Tokenizer, load_tokenizer

PROSE = "Once upon a time there was a little girl named Lily.\nShe had 12 cats. "
TRIES = 5  # on a busy machine


def longest_wait(work: Callable[[], object]) -> float:
    """The longest time another thread could not run, as a share of the work's."""
    waits: list[float] = []
    over = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not over.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            waits.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    over.set()
    thread.join()
    return max(waits) / took


@pytest.mark.parametrize("kind", ["bpe", "json"])
def test_a_long_text_leaves_others_their_turn(kind: str) -> None:
    tokenizer = SMALL[kind]()
    text = PROSE * 8000
    shares = []
    for _ in range(TRIES):
        shares.append(longest_wait(lambda: tokenizer.encode(text)))
        if shares[-1] < 0.5:
            return
    raise AssertionError(shares)


def falcon() -> Tokenizer:
    """Its words are cut again once they are spelled."""
    return load_tokenizer({**bpe_metadata(), "tokenizer.ggml.pre": "falcon"})


@pytest.mark.parametrize("text", ["a", "1", "é", "世", " "])
@pytest.mark.parametrize("make", [SMALL["bpe"], SMALL["json"], SMALL["spm"], falcon])
def test_so_does_a_word_without_end(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer, long = make(), text * 200_000
    shares = []
    for _ in range(TRIES):
        shares.append(longest_wait(lambda: tokenizer.encode(long)))
        if shares[-1] < 0.5:
            return
    raise AssertionError(shares)


@pytest.mark.parametrize("text", ["a", "12", "é世", "  ", "Lily's"])
def test_a_word_without_end_has_the_librarys_ids(text: str) -> None:
    library = Library.from_file(str(FIXTURES / "tiny-bpe" / "tokenizer.json"))
    long = text * (3 * pretokenizers.JOINTLESS)
    ids = SMALL["bpe"]().encode(long, add_special=False)
    assert ids == library.encode(long, add_special_tokens=False).ids


@pytest.mark.parametrize("name", {rules: name for name, rules in PRE_TOKENIZERS.items()}.values())
@given(text=st.text(st.sampled_from("aB1 \n\t.,'sé世カ½x😀_=/"), max_size=60))
def test_words_by_their_places_are_the_words(name: str, text: str) -> None:
    rules = PRE_TOKENIZERS[name]
    words = [word for word, _ in make_splitter(rules).pre_tokenize_str(text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretokenizers, "JOINTLESS", 0)
        assert words_of(rules).split(text) == words


@cache
def words_of(rules: PreTokenizer) -> PreTokens:
    return PreTokens(rules)


@pytest.mark.parametrize("special", [False, True])
def test_long_texts_have_the_same_ids(special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Tokenizer = SMALL["json"]()
    text = (PROSE + "<s> 世界 é\n") * 100
    assert len(text) > library.LONG
    long = tokenizer.encode(text, special)
    monkeypatch.setattr(library, "LONG", 1 << 30)
    assert tokenizer.encode(text, special) == long
