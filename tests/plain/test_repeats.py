"""DRY's penalties against a search over every pair of places; bad words where they would end."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyweight.sampling.arrays import LogitsRow, columns
from flyweight.sampling.history import find_completions, penalise_repeats
from flyweight.sampling.options import SequenceOptions
from flyweight.types import RequestWords, SamplingParams


def by_hand(tokens: Sequence[int], p: SamplingParams, breakers: set[int]) -> dict[int, float]:
    """Every earlier place, token by token, as llama.cpp's description of DRY goes."""
    text = list(tokens) if p.dry_penalty_last_n < 0 else list(tokens)[-p.dry_penalty_last_n :]
    unbroken = 0
    while unbroken < len(text) and text[-1 - unbroken] not in breakers:
        unbroken += 1
    found: dict[int, int] = {}
    for end in range(len(text) - 1):
        length = 0
        while length <= end and length < unbroken and text[end - length] == text[-1 - length]:
            length += 1
        if length >= p.dry_allowed_length and text[end + 1] not in breakers:
            found[text[end + 1]] = max(found.get(text[end + 1], 0), length)
    over = {token: length - p.dry_allowed_length for token, length in found.items()}
    return {t: p.dry_multiplier * p.dry_base**n for t, n in over.items()}


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    breakers=st.sets(st.integers(0, 5), max_size=2),
    base=st.sampled_from([1.0, 1.1, 1.75, 4.0]),
    allowed=st.integers(1, 4),
    last=st.sampled_from([-1, 1, 2, 7, 30, 100]),
)
def test_every_repetition_is_found(
    tokens: list[int], breakers: set[int], base: float, allowed: int, last: int
) -> None:
    p = SamplingParams(
        dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed, dry_penalty_last_n=last
    )
    ids, values = penalise_repeats(tokens, p, breakers)
    assert dict(zip(ids.tolist(), values, strict=True)) == pytest.approx(
        by_hand(tokens, p, breakers)
    )


def test_what_it_costs() -> None:
    """abc-abc-ab: c is next, after a run of 5; an allowed length of 2 leaves 3 steps."""
    p = SamplingParams(dry_multiplier=2.0, dry_base=3.0)
    ids, values = penalise_repeats([1, 2, 3, 1, 2, 3, 1, 2], p, ())
    assert (ids.tolist(), values) == ([3], [2.0 * 3.0**3])
    assert penalise_repeats([1, 2, 3, 1, 2, 3, 1, 2], p, {1})[0].tolist() == []  # runs of 1 only
    assert penalise_repeats([1, 2, 3, 1, 2, 3, 1, 2], p, {3})[1] == []  # a breaker costs nothing


def test_a_very_long_repetition_costs_no_more_than_a_float_holds() -> None:
    p = SamplingParams(dry_multiplier=100, dry_base=1.75)
    _, values = penalise_repeats([5] * 4000, p, ())
    assert values == [3e38]
    assert penalise_repeats([5] * 4000, SamplingParams(dry_multiplier=2, dry_base=1), ())[1] == [
        2.0
    ]


def test_it_is_taken_off_after_the_other_penalties() -> None:
    words = RequestWords(breakers=frozenset({9}))
    options = SequenceOptions(SamplingParams(dry_multiplier=1.0), 0, 0, 0, (), words)
    s = columns([LogitsRow(options, 5, [1, 2, 4, 1, 2]), LogitsRow(options, 3, [1, 2, 9])])
    assert s.repeat_ids.tolist() == [4] and s.repeat_values.tolist() == [1.0]
    assert s.repeat_starts.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("generated", "banned"),
    [([], [4]), ([1], [2, 4]), ([1, 2], [4, 3]), ([2, 1, 2], [4, 3]), ([1, 1], [2, 4])],
)
def test_bad_words_end_nowhere(generated: list[int], banned: list[int]) -> None:
    """What the prompt ends with does not count: the word would not be the model's."""
    words = ((1, 2), (4,), (1, 2, 3))
    for prompt in ([], [1], [1, 2]):
        tokens = prompt + generated
        assert set(find_completions(tokens, len(prompt), words)) == set(banned)
