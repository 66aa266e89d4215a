"""The nearest valid name: suggested for misspellings, never for another word."""

import pytest

from flyweight.cli.serve.options import OPTIONS
from flyweight.errors import count_edits, nearest

COMMANDS = ("run", "inspect", "tokenize", "check", "compile", "pull", "models", "rm", "serve",
            "stop", "bench", "eval", "version")  # fmt: skip


def hinted(word: str, known: object) -> str:
    """The name suggested; empty when there is none."""
    hint = nearest(word, known)
    return hint.removeprefix(" (did you mean '").removesuffix("'?)")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("runn", "run"), ("sevre", "serve"), ("tokenise", "tokenize"), ("mdoels", "models"),
     ("benchmark", "bench"), ("model", "models")],
)  # fmt: skip
def test_a_misspelt_command_gets_its_name(word: str, wanted: str) -> None:
    assert hinted(word, COMMANDS) == wanted


@pytest.mark.parametrize("word", ["list", "show", "chat", "ps"])
def test_another_word_is_no_misspelling(word: str) -> None:
    assert hinted(word, COMMANDS) == ""


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("--max-modl-len", "--max-model-len"), ("--prot", "--port"), ("--kv-cache-typ", ""),
     ("--layer-precision", ""), ("--num-predict", ""), ("--gpu-layers", ""), ("--foo", "")],
)  # fmt: skip
def test_options_of_serve(word: str, wanted: str) -> None:
    known = [spelling for flag in OPTIONS.values() for spelling in flag.spellings]
    found = hinted(word, known)
    assert found.startswith("--kv-cache-") if word == "--kv-cache-typ" else found == wanted


def test_what_is_compared_is_bounded() -> None:
    assert hinted("x" * 10**6, ["x" * 100]) == "x" * 100
    assert hinted("", ["a"]) == hinted("--", ["--a"]) == ""


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [("", "abc", 3), ("abc", "", 3), ("abc", "abc", 0), ("prove", "serve", 3), ("ab", "ba", 1),
     ("kitten", "sitting", 3), ("stroe", "store", 1), ("ca", "abc", 3)],
)  # fmt: skip
def test_edits(a: str, b: str, count: int) -> None:
    assert count_edits(a, b) == count
