"""Follows one JSON value as its text grows.

Invariant: takes exactly the characters of the value and the blanks before it; the first character
that no JSON text has there is reported by its place.  Makes no value of it.
"""

import re
from collections.abc import Callable

MOST_DEPTH = 128
BLANKS = " \t\r\n"
BLANK = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_DIGITS = re.compile(r"[-+.eE0-9]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"t": "true", "f": "false", "n": "null"}


class MalformedJson(Exception):
    """The text goes wrong at `at`."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def skip_blanks(text: str, at: int) -> int:
    """Where the blanks from `at` on end."""
    found = BLANK.match(text, at)
    assert found is not None
    return found.end()


def escape_surrogates(text: str) -> str:
    """JSON text with its halves of characters as escapes: no encoding has bytes for them."""
    return text.encode("utf-8", "backslashreplace").decode()


class JsonScanner:
    """`done` once the value is whole.  A number is whole when something follows it."""

    __slots__ = ("_closers", "_in_key", "_left", "_number", "_want", "done")

    def __init__(self) -> None:
        self.done = False
        self._closers: list[str] = []
        self._in_key = False
        self._left = ""  # of a word such as true
        self._number: list[str] = []
        self._want: Callable[[str, int], int] = self._value

    def feed(self, text: str, at: int) -> int:
        """Reads on from `at`; where it stopped.  Raises `MalformedJson`."""
        while at < len(text) and not self.done:
            at = self._want(text, at)
        return at

    def _value(self, text: str, at: int) -> int:
        c = text[at]
        if c == '"':
            self._want = self._string
        elif c in "{[":
            if len(self._closers) == MOST_DEPTH:
                raise MalformedJson(at)
            self._closers.append("}" if c == "{" else "]")
            self._want = self._first_key if c == "{" else self._first_item
        elif c in "-0123456789":
            self._number.clear()
            self._want = self._digits
            return at
        elif c in _WORDS:
            self._left, self._want = _WORDS[c][1:], self._word
        elif c in BLANKS:
            return skip_blanks(text, at)
        else:
            raise MalformedJson(at)
        return at + 1

    def _string(self, text: str, at: int) -> int:
        found = _PLAIN.match(text, at)
        assert found is not None
        at = found.end()
        if at == len(text):
            return at
        if text[at] == '"':
            if self._in_key:
                self._in_key, self._want = False, self._colon
            else:
                self._end_value()
        elif text[at] == "\\":
            self._want = self._escape
        else:
            raise MalformedJson(at)
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._left, self._want = "four", self._hex
        elif text[at] in '"\\/bfnrt':
            self._want = self._string
        else:
            raise MalformedJson(at)
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            raise MalformedJson(at)
        self._left = self._left[1:]
        if not self._left:
            self._want = self._string
        return at + 1

    def _word(self, text: str, at: int) -> int:
        if text[at] != self._left[0]:
            raise MalformedJson(at)
        self._left = self._left[1:]
        if not self._left:
            self._end_value()
        return at + 1

    def _digits(self, text: str, at: int) -> int:
        found = _DIGITS.match(text, at)
        assert found is not None
        self._number.append(found.group())
        if found.end() < len(text):
            if not _NUMBER.fullmatch("".join(self._number)):
                raise MalformedJson(found.end())
            self._end_value()
        return found.end()

    def _first_key(self, text: str, at: int) -> int:
        if text[at] == "}":
            return self._close(at)
        return self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] != '"':
            raise MalformedJson(at)
        self._in_key, self._want = True, self._string
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] != ":":
            raise MalformedJson(at)
        self._want = self._value
        return at + 1

    def _first_item(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] == "]":
            return self._close(at)
        self._want = self._value
        return at

    def _after(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] == self._closers[-1]:
            return self._close(at)
        if text[at] != ",":
            raise MalformedJson(at)
        self._want = self._key if self._closers[-1] == "}" else self._value
        return at + 1

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._end_value()
        return at + 1

    def _end_value(self) -> None:
        self._want = self._after
        self.done = not self._closers
