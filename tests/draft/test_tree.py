"""Trees of draft tokens against the paths they are made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyweight.draft.tree import (
    Run,
    cut_tree,
    follow,
    list_path,
    put_in_order,
    split_runs,
)

TREES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=12).map(
    lambda nodes: ([t for t, _ in nodes], [p % (i + 1) - 1 for i, (_, p) in enumerate(nodes)])
)


def list_texts(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    """What is read on the way to each token, sorted."""
    found = []
    for i in range(len(tokens)):
        text, at = [], i
        while at >= 0:
            text.insert(0, tokens[at])
            at = parents[at]
        found.append(tuple(text))
    return sorted(found)


def order(tokens: list[int], parents: list[int]) -> tuple[list[int], list[int]]:
    moved, found = put_in_order(tokens, parents)
    return moved, list(range(-1, len(moved) - 1)) if found is None else found


def test_a_tree_in_order() -> None:
    """7 and 8 follow the last known token, 5 and 6 follow 7, 9 follows 5."""
    tokens, parents = put_in_order([7, 8, 5, 6, 9], [-1, -1, 0, 0, 2])
    assert (tokens, parents) == ([7, 5, 9, 6, 8], [-1, 0, 1, 0, -1])
    assert split_runs(parents or []) == [Run(0, 3, -1, 0), Run(3, 4, 0, 1), Run(4, 5, -1, 0)]
    assert list_path(parents or [], 3) == [0, 3]
    assert put_in_order([1, 2, 3], [-1, 0, 1]) == ([1, 2, 3], None)
    assert put_in_order([], []) == ([], None)


@pytest.mark.parametrize("parents", [[0, -1], [-1, 1], [-2, 0], [-1]])
def test_what_is_no_tree_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents"):
        put_in_order([1, 2], parents)


@given(TREES)
def test_order_keeps_every_path(tree: tuple[list[int], list[int]]) -> None:
    moved, parents = order(*tree)
    assert list_texts(moved, parents) == list_texts(*tree)
    runs = split_runs(parents)
    assert [i for run in runs for i in range(run.first, run.stop)] == list(range(len(moved)))
    for run in runs:
        assert len(list_path(parents, run.first)) == run.depth + 1
        assert parents[run.first] == run.parent
        assert parents[run.first + 1 : run.stop] == list(range(run.first, run.stop - 1))
    for count in range(len(moved)):  # any first tokens are a tree
        assert all(parent < count for parent in parents[:count])


@given(TREES, st.lists(st.integers(0, 3), max_size=6))
def test_the_path_is_the_longest_that_was_drawn(
    tree: tuple[list[int], list[int]], text: list[int]
) -> None:
    """The target draws `text`, whatever comes before, and 9 after it: without siblings that are
    alike, the path is the longest of the tree's that begins `text`.
    """
    tokens, parents = order(*tree)
    if len({*list_texts(tokens, parents)}) < len(tokens):
        return
    depths = [len(list_path(parents, i)) for i in range(len(tokens))]
    drawn = [*text, *[9] * 20]
    path = follow(tokens, parents, [drawn[0], *(drawn[depth] for depth in depths)])
    texts = [t for t in list_texts(tokens, parents) if list(t) == text[: len(t)]]
    assert [tokens[i] for i in path] == list(max(texts, key=len, default=()))
    assert path == (list_path(parents, path[-1]) if path else [])


@given(TREES, st.integers(0, 3))
def test_a_cut_keeps_what_may_come(tree: tuple[list[int], list[int]], banned: int) -> None:
    def cut(text: list[int]) -> list[int]:
        return text[: text.index(banned)] if banned in text else text

    tokens, parents = order(*tree)
    kept = [t for t in list_texts(tokens, parents) if banned not in t]
    assert list_texts(*cut_tree(tokens, parents, cut)) == kept
