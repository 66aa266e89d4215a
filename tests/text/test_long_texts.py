"""Other threads have their turn while a long text is read, from a GGUF and from tokenizer.json."""

import threading
import time
from collections.abc import Callable

import pytest
from text_vocabularies import SMALL

from flyweight.text import hf
from flyweight.text.tokenizer import Tokenizer

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


@pytest.mark.parametrize("special", [False, True])
def test_long_texts_have_the_same_ids(special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Tokenizer = SMALL["json"]()
    text = (PROSE + "<s> 世界 é\n") * 100
    assert len(text) > hf.LONG
    long = tokenizer.encode(text, special)
    monkeypatch.setattr(hf, "LONG", 1 << 30)
    assert tokenizer.encode(text, special) == long
