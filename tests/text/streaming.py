"""What streaming must do, checked by definition on random ids, splits and stop strings.

Draws are a seeded generator's, not Hypothesis', which spends a hundred times as long on one of
these lists as the detokenizer does; a failure names its seed, and what it draws is small anyway.
"""

from collections.abc import Callable, Sequence
from random import Random

from flyweight.text.detokenizer import Detokenizer
from flyweight.text.tokenizer import Tokenizer

PHRASES = [
    "Once upon a time",
    " Lily",
    "  ",
    "\n",
    "🙂🎉",
    "世界",
    "é",
    "e\u0301",
    "!",
    " the",
    "👨‍👩‍👧",
]


def first_stop(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """By definition: the first place where some stop string ends, the longest of those."""
    for end in range(1, len(text) + 1):
        found = [word for word in stop if text[:end].endswith(word)]
        if found:
            word = max(found, key=len)
            return end - len(word), word
    return None


def seeded(count: int, check: Callable[[Random], None]) -> None:
    """Calls `check` with so many generators; a failure names its own seed."""
    for seed in range(count):
        try:
            check(Random(seed))
        except BaseException as error:  # a panic of the library is no Exception
            error.add_note(f"seed {seed} of {count}")
            raise


def random_ids(tokenizer: Tokenizer, draw: Random) -> list[int]:
    """Encoded phrases, any ids, bytes in any order, ids of no piece: what bad models emit."""
    size, ids = tokenizer.vocab_size, []
    for _ in range(draw.randint(0, 6)):
        kind = draw.randrange(4)
        if kind == 0:
            words = draw.choices(PHRASES, k=draw.randint(0, 4))
            ids += tokenizer.encode("".join(words), add_special=False)
        elif kind == 1:
            ids += [draw.randint(-1, size + 2) for _ in range(draw.randint(0, 6))]
        elif kind == 2:
            ids += [draw.randint(0, min(260, size)) for _ in range(draw.randint(0, 5))]
        else:
            ids += draw.choices([-1, 0, 1, 2, size - 1, size, size + 2], k=draw.randint(0, 3))
    return ids


def stops_of(text: str, draw: Random) -> tuple[str, ...]:
    """Strings likely to occur, to nearly occur, or to overlap."""
    likely = ["a", "aa", "ab", "\n\n", " t", "🙂", "\ufffd"]
    words = draw.choices(likely, k=draw.randint(0, 2))
    for _ in range(draw.randint(0, 2) if text else 0):
        start = draw.randrange(len(text))
        word = text[start : start + draw.randint(1, 8)]
        words += [word, word + "x"] if draw.random() < 0.5 else [word]
    return tuple(words)


def stream(detokenizer: Detokenizer, ids: Sequence[int], draw: Random) -> str:
    at, parts = 0, []
    while at < len(ids):
        count = draw.randint(0, 5)
        parts.append(detokenizer.push(ids[at : at + count]))
        at += count
    parts.append(detokenizer.finish())
    assert "".join(parts) == detokenizer.text
    return detokenizer.text


def check(tokenizer: Tokenizer, draw: Random) -> None:
    ids = random_ids(tokenizer, draw)
    skip, include = draw.random() < 0.5, draw.random() < 0.5
    full = tokenizer.decode(ids, skip)
    stop = stops_of(full, draw)
    detokenizer = Detokenizer(tokenizer, (), stop, skip, include)
    text = stream(detokenizer, ids, draw)
    found = first_stop(full, stop)
    if found is None:
        assert text == full and detokenizer.stopped is None
        return
    start, word = found
    assert text == full[: start + (len(word) if include else 0)]
    assert detokenizer.stopped == word
    one_by_one = Detokenizer(tokenizer, (), stop, skip, include)
    for token in ids:
        one_by_one.push([token])
    one_by_one.finish()
    assert one_by_one.pushed == detokenizer.pushed
