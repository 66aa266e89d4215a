"""Reading ahead: the same parts in order, errors where they belong, no more than one part ahead."""

from collections.abc import Iterator
from itertools import count

import pytest

from flyweight.quantize.reading import read_ahead


def test_parts_come_in_order_even_empty_ones() -> None:
    parts = [(), (1,), (), (2, 3)]
    assert list(read_ahead(iter(parts))) == parts
    assert list(read_ahead(iter([]))) == []


def test_an_error_comes_after_the_parts_before_it() -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise OSError("no more")

    found = read_ahead(fail())
    assert next(found) == 1
    with pytest.raises(OSError, match="no more"):
        next(found)


def test_one_part_is_read_ahead_at_most() -> None:
    made: list[int] = []

    def make() -> Iterator[int]:
        for i in count():
            made.append(i)
            yield i

    found = read_ahead(make())
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    found.close()  # type: ignore[attr-defined]
    assert made in ([0, 1, 2], [0, 1, 2, 3])
