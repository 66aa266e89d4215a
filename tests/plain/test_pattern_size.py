"""Patterns with large counts work, or are refused before a text is begun."""

import json
from contextlib import suppress

import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.patterns import LONGEST_TEXT, count_states
from flyweight.testing import accepts, make_acceptor


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("^[A-Za-z]{1,255}$", 257),
        (r"^(?:[a-z]{1,63}\.){1,100}$", 6402),
        ("(?<n>ab){3}(?=x)", 7),
        ("(a|b){2}", 4),
        ("[^a]{10}", 180),
        ("a{3,}", 4),
        ("a{", 2),
        ("{5}", 0),
        ("a{1000000000}", 28_001),
        ("(" * 99, 0),
    ],
)
def test_counts_are_written_out(pattern: str, size: int) -> None:
    assert count_states(pattern) == size


def test_time_grows_with_the_length() -> None:
    for part in ("[", "(?<a", "{1", "[^", "(", "\\", "{1,"):
        assert count_states(part * 20_000) >= 0
        with suppress(RequestError):
            accepts({"pattern": f"(?i){part * 5000}"}, '""')


@pytest.mark.parametrize("count", [255, 2048, 10_000])
def test_large_counts_work_to_their_end(count: int) -> None:
    schema = {"type": "string", "pattern": f"^[A-Za-z]{{1,{count}}}$"}
    judge = make_acceptor(StructuredOutputs(json=schema))
    assert judge(json.dumps("a" * count)) and not judge(json.dumps("a" * (count + 1)))


@pytest.mark.parametrize(
    "pattern", ["^([A-Za-z]{1,255},){0,255}$", "^.{1,9999}$", r"\S{40000}", "((a{999}){999}){999}"]
)
def test_counts_that_outgrow_the_lexer_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(RequestError, match=r"at '/pattern': the counts of the pattern .* allowed"):
        accepts({"pattern": pattern}, '""')
    with pytest.raises(RequestError, match=r"structured_outputs\.regex: the counts"):
        make_acceptor(StructuredOutputs(regex=pattern))


def test_long_texts_end_where_the_lexer_can_follow() -> None:
    judge = make_acceptor(StructuredOutputs(json={"type": "string", "maxLength": 100_000}))
    assert judge(json.dumps("a" * LONGEST_TEXT)) and not judge(json.dumps("a" * 4000))
    with pytest.raises(RequestError, match="at '/minLength': 4000; allowed: up to 3000"):
        accepts({"type": "string", "minLength": 4000}, '""')
