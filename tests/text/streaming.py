"""What streaming must do, checked by definition on random ids, splits and stop strings."""

from collections.abc import Sequence

from hypothesis import strategies as st

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


def random_ids(tokenizer: Tokenizer, draw: st.DrawFn) -> list[int]:
    """Encoded phrases, any ids, bytes in any order, ids of no piece: what bad models emit."""
    phrase = st.lists(st.sampled_from(PHRASES), max_size=4).map(
        lambda words: tokenizer.encode("".join(words), add_special=False)
    )
    anything = st.lists(st.integers(-1, tokenizer.vocab_size + 2), max_size=6)
    first_ids = st.lists(st.integers(0, min(260, tokenizer.vocab_size)), max_size=5)
    parts = draw(st.lists(st.one_of(phrase, anything, first_ids), max_size=6))
    return [token for part in parts for token in part]


def stops_of(text: str, draw: st.DrawFn) -> tuple[str, ...]:
    """Strings likely to occur, to nearly occur, or to overlap."""
    words = draw(
        st.lists(st.sampled_from(["a", "aa", "ab", "\n\n", " t", "🙂", "\ufffd"]), max_size=2)
    )
    for _ in range(draw(st.integers(0, 2)) if text else 0):
        start = draw(st.integers(0, len(text) - 1))
        word = text[start : start + draw(st.integers(1, 8))]
        words += [word, word + "x"] if draw(st.booleans()) else [word]
    return tuple(words)


def stream(detokenizer: Detokenizer, ids: Sequence[int], draw: st.DrawFn) -> str:
    at, parts = 0, []
    while at < len(ids):
        count = draw(st.integers(0, 5))
        parts.append(detokenizer.push(ids[at : at + count]))
        at += count
    parts.append(detokenizer.finish())
    assert "".join(parts) == detokenizer.text
    return detokenizer.text


def check(tokenizer: Tokenizer, data: st.DataObject) -> None:
    draw = data.draw
    ids = random_ids(tokenizer, draw)
    skip, include = draw(st.booleans()), draw(st.booleans())
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
