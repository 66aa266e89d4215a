"""Spells the tokens of one vocabulary in the pieces of another.

Invariant: a token and its spelling have the same bytes.  A token is spelled by itself, so the
spelling of a text only grows with the text.  Knows no model.
"""

from collections.abc import Sequence
from typing import Protocol


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    def encode(
        self, text: str, add_special: bool = ..., parse_special: bool = ...
    ) -> list[int]: ...
    def token_bytes(self, token: int, special: bool = ...) -> bytes: ...
    def piece(self, token: int) -> str: ...


class Speller:
    """Spells tokens of `source`, and bytes, in ids of `target`."""

    def __init__(self, source: Vocabulary, target: Vocabulary) -> None:
        self.source, self.target = source, target
        self._special = _match_special(source, target)
        self._known: dict[int, tuple[int, ...]] = {}
        ids = range(target.vocab_size)
        self._bytes = [target.token_bytes(i) for i in ids]
        self._ids = {raw: i for i, raw in enumerate(self._bytes) if raw}
        self._longest = max(map(len, self._ids), default=1)

    def spell(self, token: int) -> tuple[int, ...]:
        """The ids of one token; none where it has no spelling."""
        found = self._known.get(token)
        if found is None:
            if token in self._special:
                found = (self._special[token],)
            else:
                found = tuple(self.encode(self.source.token_bytes(token)))
            self._known[token] = found
        return found

    def encode(self, raw: bytes) -> list[int]:
        """The ids of some bytes of a text: as the tokenizer has them where they are text, else of
        the longest pieces.  None where there are bytes without a piece.
        """
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return self._cut(raw)
        # a vocabulary may add a space before a text: try without ours, and after a line end
        for before, given in (("", text), (" ", text[1:]), ("\n", "\n" + text)):
            if before == " " and not text.startswith(" "):
                continue
            ids = self.target.encode(given, add_special=False, parse_special=False)
            found = self._end(ids, raw)
            if found is not None:
                return found
        return self._cut(raw)

    def join(self, ids: Sequence[int]) -> bytes:
        """The bytes of ids of the target."""
        return b"".join([self._bytes[i] for i in ids])

    def _end(self, ids: list[int], raw: bytes) -> list[int] | None:
        """The last of some ids, as many as have the bytes."""
        count = len(raw)
        for i in range(len(ids) - 1, -1, -1):
            count -= len(self._bytes[ids[i]])
            if count <= 0:
                return ids[i:] if self.join(ids[i:]) == raw else None
        return [] if not raw else None

    def _cut(self, raw: bytes) -> list[int]:
        """The longest piece first, again and again."""
        ids: list[int] = []
        at = 0
        while at < len(raw):
            for stop in range(min(len(raw), at + self._longest), at, -1):
                if raw[at:stop] in self._ids:
                    ids.append(self._ids[raw[at:stop]])
                    at = stop
                    break
            else:
                return []
        return ids


def _match_special(source: Vocabulary, target: Vocabulary) -> dict[int, int]:
    """Special tokens of one spelling, and the ends of a text."""
    known = {target.piece(i): i for i in target.special_ids}
    found = {i: known[source.piece(i)] for i in source.special_ids if source.piece(i) in known}
    if target.eos_id is not None:
        found |= {i: target.eos_id for i in source.eos_ids if i not in found}
    return found
