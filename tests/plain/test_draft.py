"""Prompt lookup against a search that looks everywhere."""

import time
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.draft.drafter import Drafter, DraftRequest
from flyweight.draft.ngram import NgramDrafter
from flyweight.errors import ConfigError


def guess(tokens: list[int], limit: int = 4, most: int = 5, least: int = 2) -> list[int]:
    drafter = NgramDrafter(most, least)
    return list(drafter.propose([DraftRequest("a", tokens, (), limit)])[0].tokens)


def search(tokens: list[int], limit: int, most: int, least: int) -> list[int]:
    """The longest suffix found earlier, the latest place of it; past the end it repeats itself."""
    for length in range(most, least - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) > length and tokens[end - length : end] == tokens[-length:]:
                out = list(tokens)
                for i in range(limit):
                    out.append(out[end + i])
                return out[len(tokens) :]
    return []


def test_drafts_what_followed_before() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5, 9]
    assert guess([1, 2, 7, 3, 1, 2, 8, 5, 1, 2]) == [8, 5, 1, 2]  # the latest
    assert guess([6, 1, 2, 7, 4, 1, 2, 8, 6, 1, 2]) == [7, 4, 1, 2]  # the longest
    assert guess([7] * 5, limit=3) == [7, 7, 7]


def test_says_nothing_where_nothing_repeats() -> None:
    assert [guess(tokens) for tokens in ([], [1], [1, 1], [1, 2, 3])] == [[], [], [], []]
    assert guess([1, 2, 3, 1, 2], limit=0) == []


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_equals_the_search(tokens: list[int], limit: int, least: int, more: int) -> None:
    most = least + more
    assert guess(tokens, limit, most, least) == search(tokens, limit, most, least)


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=12))
def test_growing_texts_need_no_second_look(parts: list[list[int]]) -> None:
    """One drafter that sees two texts grow, in turn, against a fresh one each time."""
    drafter: Drafter = NgramDrafter()
    texts: list[list[int]] = [[], []]
    for i, part in enumerate(parts):
        texts[i % 2].extend(part)
        asks = [DraftRequest(name, text, (), 4) for name, text in enumerate(texts)]
        assert [list(d.tokens) for d in drafter.propose(asks)] == [guess(t) for t in texts]


def test_forgets() -> None:
    drafter = NgramDrafter()
    drafter.propose([DraftRequest("a", [1, 2, 3, 1, 2], (), 2)])
    drafter.forget("a")
    drafter.forget("never seen")
    assert drafter.propose([DraftRequest("a", [5, 6, 7, 5, 6], (), 2)])[0].tokens == (7, 5)


@pytest.mark.parametrize(("most", "least"), [(1, 2), (5, 0), (0, 0), (5, -1)])
def test_min_above_max_is_refused(most: int, least: int) -> None:
    with pytest.raises(ConfigError, match=f"prompt_lookup_min = {least} .*nearest valid"):
        NgramDrafter(most, least)


def test_long_texts_cost_no_more() -> None:
    """A step on 200,000 tokens, all alike (the longest chain there is), under a millisecond."""
    drafter, tokens = NgramDrafter(), array("i", [3, 4] * 100_000)
    drafter.propose([DraftRequest("a", tokens, (), 4)])
    batches = []
    for _ in range(5):  # of processor time, the least: whoever is next to us takes some of a core's
        start = time.thread_time()
        for _ in range(20):
            tokens.append(5)
            tokens.extend((3, 4))
            drafter.propose([DraftRequest("a", tokens, (), 4)])
        batches.append(time.thread_time() - start)
    assert min(batches) < 0.02, batches
