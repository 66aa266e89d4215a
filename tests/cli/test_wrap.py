"""Word wrap: the same whatever pieces a text comes in, nothing lost, no line too long."""

import io
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flyweight.cli.wrap import WordWrapper

TEXTS = st.text(alphabet="ab c\n\t日,é", max_size=200)


def wrapped(pieces: list[str], width: int) -> str:
    stream = io.StringIO()
    out = WordWrapper(stream, lambda: width)
    for piece in pieces:
        out.write(piece)
    out.end()
    return stream.getvalue()


@given(TEXTS, st.lists(st.integers(0, 200), max_size=8), st.integers(20, 60))
def test_pieces_make_no_difference(text: str, cuts: list[int], width: int) -> None:
    at = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(at)]
    assert wrapped(pieces, width) == wrapped([text], width)


@given(TEXTS.filter(lambda text: "\t" not in text), st.integers(20, 60))
def test_no_line_is_too_long_and_nothing_is_lost(text: str, width: int) -> None:
    shown = wrapped([text], width)
    lines = shown.split("\n")
    for line in lines:
        words = line.split()
        assert cell_len(line) <= width or max(map(cell_len, words)) > width or line[0] == " "
    assert "".join(shown.split()) == "".join(text.split())


def test_lines_break_between_words() -> None:
    text = "The quick brown fox jumps over the lazy dog and runs away."
    assert wrapped([text], 20) == ("The quick brown fox\njumps over the lazy\ndog and runs away.")
    assert wrapped(["x" * 50 + " yes"], 20) == "x" * 50 + " yes"
    assert wrapped(["日本語" * 5], 20) == "日本語" * 3 + "日\n" + "本語" + "日本語"
    assert wrapped(["  indented\n    more"], 20) == "  indented\n    more"


def test_without_a_width_text_is_as_it_is() -> None:
    text = "trailing blanks  \n and\ta tab " + "word " * 30
    assert wrapped([text], 0) == wrapped([text], 19) == text
