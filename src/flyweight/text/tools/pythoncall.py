"""One call of a tool as Python spells it: `name(city='Paris', days=[1, 2])`.

Invariant: `take` gives JSON, as the letters come; what is no literal of Python's that JSON has
goes wrong at its first letter that cannot be.  JSON's own literals are taken too.
"""

import json
import re
from collections.abc import Callable

from flyweight.text.tools.jsontext import BLANKS, MOST_DEPTH, MalformedJson, skip_blanks

WORDS = {"True": "true", "False": "false", "None": "null"}
WORDS |= {word: word for word in WORDS.values()}
ESCAPES = {"a": "\a", "v": "\v", "0": "\0", "\n": "", "'": "'", "/": "/"}
HEX = {"x": 2, "u": 4, "U": 8}
LONGEST_NAME = 128
_PLAIN = {q: re.compile(rf"[^{q}\\]*") for q in "'\""}
_DIGITS = re.compile(r"[-.eE+0-9]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LETTERS = re.compile(r"[A-Za-z]*")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]*")


def can_begin(text: str, at: int) -> bool:
    """Whether a tool's name may begin there."""
    found = _NAME.match(text, at)
    return found is not None and found.end() > at


class PythonCall:
    """Reads one call."""

    __slots__ = (
        "_closers", "_in_key", "_left", "_names", "_new", "_quote", "_seen", "_want", "_word",
        "done", "name",
    )  # fmt: skip

    def __init__(self, names: frozenset[str]) -> None:
        self.name, self.done = "", False
        self._names = names
        self._word = ""  # a name, number or escape that is being read
        self._quote, self._left = "", 0
        self._closers: list[str] = []
        self._in_key = False  # whether the string is a key
        self._seen: set[str] = set()
        self._new: list[str] = []
        self._want: Callable[[str, int], int] = self._head

    def feed(self, text: str, at: int) -> int:
        """Reads on from `at`; where it stopped.  Raises `MalformedJson`."""
        while at < len(text) and not self.done:
            at = self._want(text, at)
        return at

    def take(self) -> str:
        if not self.name:
            return ""
        new = "".join(self._new)
        self._new.clear()
        return new

    # --- names ---

    def _head(self, text: str, at: int) -> int:
        end = self._more(_NAME, text, at)
        if end == len(text):
            return end
        if text[end] != "(" or self._word not in self._names:
            raise MalformedJson(end)
        self.name, self._closers = self._word, [")"]
        self._new.append("{")
        self._want = self._first
        return end + 1

    def _keyword(self, text: str, at: int) -> int:
        end = self._more(_NAME, text, at)
        if end == len(text):
            return end
        if text[end] in BLANKS and self._word:
            return skip_blanks(text, end)
        if text[end] != "=" or not self._word or self._word in self._seen:
            raise MalformedJson(end)
        comma = ", " if self._seen else ""
        self._seen.add(self._word)
        self._new.append(f"{comma}{json.dumps(self._word)}: ")
        self._want = self._value
        return end + 1

    def _more(self, letters: "re.Pattern[str]", text: str, at: int) -> int:
        """Adds what matches to the word; where it ends."""
        found = letters.match(text, at)
        assert found is not None
        self._word += found.group()
        if len(self._word) > LONGEST_NAME:
            raise MalformedJson(at)
        return found.end()

    # --- values ---

    def _first(self, text: str, at: int) -> int:
        """After an opening bracket."""
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        return self._end(at) if text[at] == self._closers[-1] else self._next(text, at)

    def _next(self, text: str, at: int) -> int:
        """A value of a list, a key of a dictionary, a keyword of the call."""
        self._word = ""
        if self._closers[-1] == "]":
            self._want = self._value
        elif self._closers[-1] == ")":
            self._want = self._keyword
        elif text[at] in _PLAIN:
            self._in_key, self._want = True, self._value
        else:
            raise MalformedJson(at)
        return at

    def _value(self, text: str, at: int) -> int:
        c = text[at]
        if c in BLANKS:
            return skip_blanks(text, at)
        if c in _PLAIN:
            self._quote, self._want = c, self._string
            self._new.append('"')
        elif c in "[{":
            if len(self._closers) == MOST_DEPTH:
                raise MalformedJson(at)
            self._closers.append("]" if c == "[" else "}")
            self._new.append(c)
            self._want = self._first
        else:
            self._word = ""
            self._want = self._number if c in "-.0123456789" else self._literal
            return at
        return at + 1

    def _number(self, text: str, at: int) -> int:
        end = self._more(_DIGITS, text, at)
        if end < len(text):
            if not _NUMBER.fullmatch(self._word):
                raise MalformedJson(end)
            self._new.append(self._word)
            self._want = self._after
        return end

    def _literal(self, text: str, at: int) -> int:
        end = self._more(_LETTERS, text, at)
        if end < len(text):
            if self._word not in WORDS:
                raise MalformedJson(end)
            self._new.append(WORDS[self._word])
            self._want = self._after
        return end

    def _string(self, text: str, at: int) -> int:
        found = _PLAIN[self._quote].match(text, at)
        assert found is not None
        self._emit_text(found.group())
        at = found.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._want = self._escape
        else:
            self._new.append('"')
            self._want = self._colon if self._in_key else self._after
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        c = text[at]
        self._want = self._string
        if c in '"\\nrtbf':
            self._new.append("\\" + c)
        elif c in HEX:
            self._word, self._left, self._want = "", HEX[c], self._digits
        else:  # what Python knows no escape of stays as it is
            self._emit_text(ESCAPES.get(c, "\\" + c))
        return at + 1

    def _digits(self, text: str, at: int) -> int:
        """Of an escape."""
        if text[at] not in "0123456789abcdefABCDEF":
            raise MalformedJson(at)
        self._word += text[at]
        if len(self._word) == self._left:
            code = int(self._word, 16)
            if code > 0x10FFFF:
                raise MalformedJson(at)
            # Halves of a pair stay what they are: JSON may have the other half behind.
            self._new.append(json.dumps(chr(code))[1:-1])
            self._want = self._string
        return at + 1

    def _emit_text(self, text: str) -> None:
        if text:
            self._new.append(json.dumps(text, ensure_ascii=False)[1:-1])

    def _colon(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] != ":":
            raise MalformedJson(at)
        self._in_key, self._want = False, self._value
        self._new.append(": ")
        return at + 1

    def _after(self, text: str, at: int) -> int:
        """After a value."""
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] == self._closers[-1]:
            return self._end(at)
        if text[at] != ",":
            raise MalformedJson(at)
        self._want = self._another
        return at + 1

    def _another(self, text: str, at: int) -> int:
        """After a comma, which may be the last."""
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] == self._closers[-1]:
            return self._end(at)
        if self._closers[-1] != ")":  # a keyword brings its own
            self._new.append(", ")
        return self._next(text, at)

    def _end(self, at: int) -> int:
        closer = self._closers.pop()
        self._new.append("}" if closer == ")" else closer)
        self.done = not self._closers
        self._want = self._after
        return at + 1
