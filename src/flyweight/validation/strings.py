"""A long list of strings, kept as a file has them and decoded when one is read: vocabularies
have 300,000, and a short prompt needs a handful.

Invariant: equal to the list of its strings; bytes that are not UTF-8 are lone surrogates.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from flyweight import _native
from flyweight.wire import I64, U8


class Strings(Sequence[str]):
    """String i is bytes [begin[i], end[i]) of `raw`."""

    __slots__ = ("begin", "end", "raw")

    def __init__(self, raw: U8, begin: I64, end: I64) -> None:
        self.raw, self.begin, self.end = raw, begin, end

    @classmethod
    def of(cls, values: Iterable[str]) -> "Strings":
        """The same strings, in this form."""
        if isinstance(values, Strings):
            return values
        parts = [value.encode("utf-8", "surrogateescape") for value in values]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        begins = np.concatenate((np.zeros(min(1, len(parts)), np.int64), ends[:-1]))
        return cls(np.frombuffer(b"".join(parts), np.uint8), begins, ends)

    @classmethod
    def scan(cls, raw: U8, at: int, count: int, most: int) -> "Strings":
        """`count` strings that follow each other from `at` on, each after its length in 8 bytes; as
        many of them as are whole and at most `most` bytes long.
        """
        return cls(raw, *_native.scan(raw, at, count, most))

    def __len__(self) -> int:
        return len(self.begin)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        raw = self.raw[self.begin[index] : self.end[index]]
        return raw.tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        raw = self.raw.tobytes()
        for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True):
            yield raw[begin:end].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self[:20]))

    def malformed(self) -> int:
        """The first string that is not valid UTF-8; -1 where all are."""
        return _native.malformed(self.raw, self.begin, self.end)
