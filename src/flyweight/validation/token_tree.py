"""Reads a draft tree's shape: vLLM's `speculative_token_tree`, a list of paths as Python writes it.

Invariant: a shape that was read holds the beginning of each of its paths.  A path's numbers are
ranks, 0 for the best token at that place.  Standard library only.
"""

import ast
from typing import TypeAlias

from flyweight.errors import ConfigError

TokenTree: TypeAlias = tuple[tuple[int, ...], ...]
MOST_RANK = 63
EXAMPLE = "a list of paths such as [(0,), (1,), (0, 0)]"
LONGEST = 20_000  # characters


def read_token_tree(text: str, path: str, most: int) -> TokenTree:
    """At most `most` paths, likely ones first: by how many tokens they have and how low these rank.
    Raises `ConfigError`.
    """
    found = _parse(text)
    if found is None:
        raise ConfigError("is not valid", path, value=text, allowed=EXAMPLE)
    shape = tuple(sorted(set(found), key=lambda one: (len(one) + sum(one), sum(one), one)))
    if len(shape) < len(found):
        raise ConfigError("is not valid: a path is in it twice", path, value=text, allowed=EXAMPLE)
    if not 1 <= len(shape) <= most:
        raise ConfigError(f"has {len(shape)} paths", path, allowed=f"1 to {most}")
    known = {(), *shape}
    for one in shape:
        if not all(0 <= rank <= MOST_RANK for rank in one):
            ranks = f"ranks 0 to {MOST_RANK}"
            raise ConfigError(f": {one} is out of range", path, allowed=ranks)
        if one[:-1] not in known:
            hint = f"nearest valid: add {one[:-1]}"
            raise ConfigError(f": {one} follows a path that is not in it", path, hint=hint)
    return shape


def list_parents(shape: TokenTree) -> list[int]:
    """The place of each path's beginning, -1 where it has one token."""
    place = {one: i for i, one in enumerate(shape)}
    return [place.get(one[:-1], -1) for one in shape]


def _parse(text: str) -> list[tuple[int, ...]] | None:
    if len(text) > LONGEST:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    if not isinstance(found, list | tuple):
        return None
    for one in found:
        whole = isinstance(one, tuple) and one and all(type(rank) is int for rank in one)
        if not whole:
            return None
    return list(found)
