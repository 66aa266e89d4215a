"""Answers that go round in circles: found where the definition finds them, at the token it is."""

import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyweight.errors import RequestError
from flyweight.params.repetition import LARGEST, LONGEST, RepetitionDetectionParams
from flyweight.types import SamplingParams

RULES = st.builds(
    lambda least, more, count: RepetitionDetectionParams(least + more, least, count),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(2, 4),
)
TEXTS = st.lists(st.integers(0, 2), max_size=40)


def as_defined(text: Sequence[int], rule: RepetitionDetectionParams) -> bool:
    """Whether a text ends with `min_count` times one pattern."""
    sizes = range(max(1, rule.min_pattern_size), rule.max_pattern_size + 1)
    count = rule.min_count
    return any(
        len(text) >= size * count and list(text[-size * count :]) == list(text[-size:]) * count
        for size in sizes
    )


@given(RULES, TEXTS, TEXTS, st.data())
@example(RepetitionDetectionParams(3, 2, 3), [1], [1, 2, 0, 1, 2, 0, 1, 2, 0], None)
def test_it_is_found_where_the_definition_finds_it(
    rule: RepetitionDetectionParams, prompt: list[int], answer: list[int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(answer))) if data else 3  # known before this step
    least = data.draw(st.integers(-2, 9)) if data else 0
    before, new = array("i", prompt + answer[:cut]), answer[cut:]
    found = rule.find_end(before, len(prompt), new, least)
    ends = (i for i in range(1, len(new) + 1) if i >= least and as_defined(answer[: cut + i], rule))
    assert found == next(ends, None) and before.tolist() == prompt + answer[:cut]


@pytest.mark.parametrize("size", [1, 7, 100, LARGEST])
def test_long_patterns_are_found_at_their_last_token(size: int) -> None:
    rule = RepetitionDetectionParams(size, size, LONGEST // LARGEST)
    pattern = [i * i % 1009 for i in range(size)]
    before = array("i", [-1, *(pattern * rule.min_count)[:-1]])
    assert rule.find_end(before, 1, [pattern[-1]], 0) == 1
    assert rule.find_end(before, 1, [pattern[-1] + 1], 0) is None
    assert rule.find_end(before[:1] + before[2:], 1, [pattern[-1]], 0) is None


def test_what_it_costs_does_not_grow_with_the_text() -> None:
    rule = RepetitionDetectionParams(20, 1, 4)

    def seconds(length: int) -> float:
        text = array("i", range(length))
        began = time.perf_counter()
        for _ in range(100):
            rule.find_end(text, 0, [-1], 0)
        return time.perf_counter() - began

    short = min(seconds(1000) for _ in range(5))
    assert min(seconds(1_000_000) for _ in range(5)) < 5 * short


@pytest.mark.parametrize(
    ("given", "name", "allowed"),
    [
        ({"max_pattern_size": -1}, "max_pattern_size", f"0 to {LARGEST}"),
        ({"max_pattern_size": LARGEST + 1}, "max_pattern_size", f"0 to {LARGEST}"),
        ({"max_pattern_size": 4.0, "min_count": 2}, "max_pattern_size", f"0 to {LARGEST}"),
        ({"max_pattern_size": 3, "min_pattern_size": 4}, "min_pattern_size", "0 to 3"),
        ({"max_pattern_size": 3, "min_count": 1}, "min_count", f"2 to {LONGEST // 3}"),
        ({"max_pattern_size": 16, "min_count": 1025}, "min_count", "2 to 1024"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(
    given: dict[str, int], name: str, allowed: str
) -> None:
    with pytest.raises(RequestError, match=rf"^repetition_detection\.{name} = .*{allowed}"):
        RepetitionDetectionParams(**given)


def test_params_take_one_and_nothing_else() -> None:
    rule = RepetitionDetectionParams(3, 0, 2)
    assert SamplingParams(repetition_detection=rule).repetition_detection == rule
    with pytest.raises(RequestError, match="a RepetitionDetectionParams, or none"):
        SamplingParams(repetition_detection=asdict(rule))  # type: ignore[arg-type]


def test_a_pattern_of_no_tokens_is_none_at_all() -> None:
    assert RepetitionDetectionParams().find_end(array("i", [1, 1, 1]), 0, [1, 1], 0) is None
