"""Trees of draft tokens, as the parent of each token: -1 is the last known token.

Invariant: a parent comes before its children.  Trees in order are depth first, first children
first: a first child comes right after its parent, and any first tokens of a tree are a tree.
Standard library only; knows no model and no memory.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

ROOT = -1


class Run(NamedTuple):
    """Tokens first:stop of a tree in order, each the child of the one before; the first follows
    `parent`, and `depth` draft tokens come before it.
    """

    first: int
    stop: int
    parent: int
    depth: int


def put_in_order(
    tokens: Sequence[int], parents: Sequence[int]
) -> tuple[list[int], list[int] | None]:
    """The tree in order; no parents where it is a chain.  Raises `ValueError` for parents that make
    no tree.
    """
    if len(parents) != len(tokens):
        raise ValueError(f"a draft of {len(tokens)} tokens has {len(parents)} parents")
    children: list[list[int]] = [[] for _ in range(len(tokens) + 1)]
    for i, parent in enumerate(parents):
        if not ROOT <= parent < i:
            raise ValueError(f"parents[{i}] = {parent} is out of range; allowed: -1 to {i - 1}")
        children[parent + 1].append(i)
    order: list[int] = []
    left = children[0][::-1]
    while left:
        order.append(left.pop())
        left += reversed(children[order[-1] + 1])
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    moved = [place[parents[node]] for node in order]
    return [tokens[node] for node in order], None if is_chain(moved) else moved


def is_chain(parents: Sequence[int]) -> bool:
    return all(parent == i - 1 for i, parent in enumerate(parents))


def list_path(parents: Sequence[int], node: int) -> list[int]:
    """The tokens from the first draft token on that lead to `node`, itself included."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def split_runs(parents: Sequence[int]) -> list[Run]:
    """The runs of a tree in order; the first is its trunk."""
    runs: list[Run] = []
    depths: list[int] = []
    for i, parent in enumerate(parents):
        depths.append(0 if parent == ROOT else depths[parent] + 1)
        if i and parent == i - 1:
            runs[-1] = runs[-1]._replace(stop=i + 1)
        else:
            runs.append(Run(i, i + 1, parent, depths[i]))
    return runs


def cut_tree(
    tokens: Sequence[int], parents: Sequence[int], cut: Callable[[list[int]], list[int]]
) -> tuple[list[int], list[int]]:
    """The part of a tree in order that `cut` leaves: it is given each path to a leaf, and returns
    how the path may begin.
    """
    inner, kept = set(parents), set[int]()
    for leaf in (i for i in range(len(tokens)) if i not in inner):
        path = list_path(parents, leaf)
        kept.update(path[: len(cut([tokens[i] for i in path]))])
    order = sorted(kept)
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(order)}
    return [tokens[i] for i in order], [place[parents[i]] for i in order]


def follow(tokens: Sequence[int], parents: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The accepted path of a tree in order: from the last known token on, the child whose token is
    the one drawn after its parent.  drawn[0] comes after the last known token, drawn[i + 1] after
    token i.
    """
    path, node = list[int](), ROOT
    for i, parent in enumerate(parents):  # children come after their parents
        if parent == node and tokens[i] == drawn[node + 1]:
            path.append(i)
            node = i
    return path
