"""Reads the next part of a matrix while one is worked on.

Invariant: parts come in order, and at most one is read ahead; nothing is read any more once the
iterator has ended or was closed.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")


def read_ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """The same parts, each made on another thread.  Raises what making one raises."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(_take, parts)
        while found := coming.result():
            coming = thread.submit(_take, parts)
            yield found[0]


def _take(parts: Iterator[Part]) -> tuple[Part, ...]:
    """The next part; nothing at the end."""
    for part in parts:
        return (part,)
    return ()
