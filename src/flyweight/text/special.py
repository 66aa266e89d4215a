"""Finds special tokens written out in a text, before any merging sees it.

Leftmost first, then longest; control tokens only when asked, user-defined ones always.  Knows
nothing of merging.
"""

import re
from collections.abc import Iterator, Mapping


class SpecialSplitter:
    """Cuts a text into plain stretches (`str`, never empty) and special tokens (`int`)."""

    __slots__ = ("_all", "_ids", "_user")

    def __init__(self, user: Mapping[str, int], control: Mapping[str, int]) -> None:
        self._ids = {**control, **user}
        self._user = _compile_alternation(user)
        self._all = _compile_alternation(self._ids)

    def split(self, text: str, parse_special: bool) -> Iterator[str | int]:
        pattern = self._all if parse_special else self._user
        start = 0
        for found in pattern.finditer(text) if pattern else ():
            if found.start() > start:
                yield text[start : found.start()]
            yield self._ids[found.group()]
            start = found.end()
        if start < len(text):
            yield text[start:]


def _compile_alternation(words: Mapping[str, int]) -> re.Pattern[str] | None:
    longest_first = sorted(filter(None, words), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
