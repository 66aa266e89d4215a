"""A codec over a vocabulary of pieces and a function that makes ids of plain text.

Special tokens are found here, before that function sees a text: leftmost first, then longest;
control tokens only when requested, user-defined ones always. Text comes from each piece's bytes, so
that it can be streamed. Knows no file format: byte-level BPE, unigram and WordPiece differ only in
the function and the bytes they bring.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from flyweight.text.codec import TextStream
from flyweight.text.gguf import GgufVocabulary, TokenType
from flyweight.text.streams import ByteStream, join_bytes


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


REMEMBERED = 4096  # tokens whose bytes are at hand: a text comes back to the same few


@dataclass(frozen=True, slots=True)
class PieceKind:
    """What sets a kind apart: `encode` makes ids of a plain stretch of text, `spelled` says what a
    piece adds to a text, and `strip_space` whether a text's first space is no part of it.
    """

    encode: Callable[[str], list[int]]
    spelled: Callable[[int], bytes]
    strip_space: bool = False


class PieceCodec:
    """Texts to pieces and back; `vocabulary` says which are special, and what goes around a
    text.
    """

    def __init__(self, vocabulary: GgufVocabulary, kind: PieceKind) -> None:
        self._pieces = vocabulary.pieces
        self._special = vocabulary.marks.special_ids
        self._around = vocabulary.around
        self._kind = kind
        self._spelled = lru_cache(REMEMBERED)(kind.spelled)
        self._splitter = SpecialSplitter(
            vocabulary.select_types(TokenType.USER_DEFINED), vocabulary.select_control()
        )

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        before, after = self._around if add_special else ((), ())
        ids = list(before)
        for part in self._splitter.split(text, parse_special):
            ids += [part] if isinstance(part, int) else self._kind.encode(part)
        ids.extend(after)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        pieces = [self.token_bytes(i, not skip_special) for i in ids]
        return join_bytes(pieces, strip_space=self._kind.strip_space)

    def stream(self, context: Sequence[int], skip_special: bool) -> TextStream:
        bytes_of = partial(self.token_bytes, special=not skip_special)
        return ByteStream(bytes_of, context, strip_space=self._kind.strip_space)

    def token_bytes(self, token: int, special: bool) -> bytes:
        if not 0 <= token < len(self._pieces) or (token in self._special and not special):
            return b""
        return self._spelled(token)

    def piece(self, token: int) -> str:
        return self._pieces[token] if 0 <= token < len(self._pieces) else ""
