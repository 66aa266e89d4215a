"""The ways a vocabulary's text can grow id by id without ever taking back what was shown.

`ByteStream` serves kinds whose text is the UTF-8 reading of concatenated piece bytes; `RunStream`
serves library decoders that read a run of byte pieces as one; `WholeStream` waits for the end.  All
are exact: joined output equals decoding everything at once.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence

from flyweight.text.codec import TextStream

LONGEST_CHARACTER = 4  # bytes of one character in UTF-8


def join_bytes(pieces: Sequence[bytes], strip_space: bool) -> str:
    """Text of concatenated piece bytes; `strip_space` drops one space at its very start."""
    text = b"".join(pieces).decode("utf-8", "replace")
    return text.removeprefix(" ") if strip_space else text


class ByteStream:
    """Piece bytes through an incremental UTF-8 decoder.

    A prompt that ends inside a character is continued: the character is completed by the first
    bytes pushed. `strip_space` drops one space at the start of the whole text, so only when the
    context shows none.
    """

    __slots__ = ("_bytes_of", "_decoder", "_strip")

    def __init__(
        self, bytes_of: Callable[[int], bytes], context: Sequence[int], strip_space: bool
    ) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tail = b""
        for token in reversed(context):
            tail = bytes_of(token) + tail
            if len(tail) >= LONGEST_CHARACTER:
                break
        self._decoder.decode(tail)  # leaves only the bytes of an unfinished character behind
        self._strip = strip_space and not tail

    def push(self, token: int) -> str:
        return self._strip_first(self._decoder.decode(self._bytes_of(token)))

    def finish(self) -> str:
        return self._strip_first(self._decoder.decode(b"", final=True))

    def _strip_first(self, text: str) -> str:
        if not (text and self._strip):
            return text
        self._strip = False
        return text.removeprefix(" ")


class RunStream:
    """A library decoder watched through a window: one settled piece, then the ids not shown yet.

    Such decoders look at the first piece (spaces, prefixes) and read a run of byte pieces as a
    whole: if any byte of the run is wrong, all of it becomes U+FFFD.  So text settles exactly when
    a piece that is no byte arrives, and that piece then stands in for everything before it.  Each
    id is decoded at most twice.
    """

    __slots__ = ("_decode", "_settles", "_shown", "_window")

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        settles: Callable[[int], bool],
        newest_first: Iterable[int],
    ) -> None:
        self._decode = decode
        self._settles = settles
        self._window: list[int] = []
        for token in newest_first:  # the context, back to its last settled piece
            self._window.insert(0, token)
            if settles(token):
                break
        self._shown = decode(self._window)

    def push(self, token: int) -> str:
        self._window.append(token)
        if not self._settles(token):
            return ""
        text = self._take_unshown()
        self._window = [token]
        self._shown = self._decode(self._window)
        return text

    def finish(self) -> str:
        return self._take_unshown()

    def _take_unshown(self) -> str:
        text = self._decode(self._window)
        same = 0  # a context that ended inside a run may read differently now
        for before, after in zip(self._shown, text, strict=False):
            if before != after:
                break
            same += 1
        return text[same:]


class WholeStream:
    """For a decoder whose every piece may depend on the next: nothing is certain before the end."""

    __slots__ = ("_context", "_decode", "_ids")

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int]) -> None:
        self._decode = decode
        self._context = list(context)
        self._ids: list[int] = []

    def push(self, token: int) -> str:
        self._ids.append(token)
        return ""

    def finish(self) -> str:
        shown = self._decode(self._context)
        return self._decode(self._context + self._ids)[len(shown) :]


class Filtered:
    """Passes on only the ids that `shown` accepts; the others add no text."""

    __slots__ = ("_shown", "_stream")

    def __init__(self, stream: TextStream, shown: Callable[[int], bool]) -> None:
        self._stream = stream
        self._shown = shown

    def push(self, token: int) -> str:
        return self._stream.push(token) if self._shown(token) else ""

    def finish(self) -> str:
        return self._stream.finish()
