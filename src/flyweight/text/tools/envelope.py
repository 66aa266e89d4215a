"""One call of a tool, as models write it: an object with a name and arguments, or a name in front
of its arguments.

Invariant: `name` is one of the known ones; `take` gives the arguments' text as it came, and begins
with their first character.
"""

import json
import re
from collections.abc import Callable
from typing import Protocol

from flyweight.text.tools.jsontext import (
    BLANKS,
    JsonScanner,
    MalformedJson,
    escape_surrogates,
    skip_blanks,
)

ARGUMENTS = ("arguments", "parameters")
KEYS = {"name", "id", "type", *ARGUMENTS}
_HEADER = re.compile(r"[A-Za-z0-9_.:/\[\]-]*")


class CallReader(Protocol):
    """Reads one call; `done` when it is whole."""

    name: str
    done: bool

    def feed(self, text: str, at: int) -> int: ...
    def take(self) -> str: ...


class Envelope:
    """`{"name": ..., "arguments": {...}}`, its keys in any order; `parameters` are the same."""

    __slots__ = (
        "_given", "_key", "_names", "_new", "_seen", "_value", "_want", "_word", "done", "name",
    )  # fmt: skip

    def __init__(self, names: frozenset[str]) -> None:
        self.name, self.done = "", False
        self._names = names
        self._seen: set[str] = set()
        self._key = ""
        self._value = JsonScanner()
        self._word: list[str] = []  # the key or value that is being read
        self._new: list[str] = []  # of the arguments
        self._given = False  # whether there are any
        self._want: Callable[[str, int], int] = self._open

    def feed(self, text: str, at: int) -> int:
        """Reads on from `at`; where it stopped.  Raises `MalformedJson`."""
        while at < len(text) and not self.done:
            at = self._want(text, at)
        return at

    def take(self) -> str:
        """What is new of the arguments, once it is known whose they are."""
        if not self.name or not self._new:
            return ""
        new = "".join(self._new)
        self._new.clear()
        return new

    def _open(self, text: str, at: int) -> int:
        if text[at] != "{":
            raise MalformedJson(at)
        self._want = self._before_key
        return at + 1

    def _before_key(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] != '"':
            raise MalformedJson(at)
        self._read(self._in_key)
        return at

    def _in_key(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._word.append(text[at:end])
        if self._value.done:
            self._key = json.loads("".join(self._word))
            kind = ARGUMENTS[0] if self._key in ARGUMENTS else self._key
            if kind not in KEYS or kind in self._seen:
                raise MalformedJson(end)
            self._seen.add(kind)
            self._want = self._colon
        return end

    def _colon(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] != ":":
            raise MalformedJson(at)
        self._want = self._before_value
        return at + 1

    def _before_value(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if self._key in ARGUMENTS and text[at] == "{":
            self._read(self._in_arguments)
        elif self._key in ARGUMENTS and text[at] not in '"n':
            raise MalformedJson(at)
        else:
            self._read(self._in_value)
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        self._given = True
        try:
            end = self._value.feed(text, at)
        except MalformedJson as bad:
            self._new.append(text[at : bad.at])
            raise
        self._new.append(text[at:end])
        if self._value.done:
            self._want = self._after
        return end

    def _in_value(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._word.append(text[at:end])
        if self._value.done:
            self._took(json.loads("".join(self._word)), end)
            self._want = self._after
        return end

    def _took(self, value: object, end: int) -> None:
        if self._key == "name":
            if not isinstance(value, str) or value not in self._names:
                raise MalformedJson(end)
            self.name = value
        elif self._key in ARGUMENTS and isinstance(value, str):
            if not _is_object(value):
                raise MalformedJson(end)
            self._given = True
            self._new.append(escape_surrogates(value))

    def _after(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        if text[at] == ",":
            self._want = self._before_key
        elif text[at] == "}" and self.name:
            self.done = True
            if not self._given:
                self._new.append("{}")
        else:
            raise MalformedJson(at)
        return at + 1

    def _read(self, want: Callable[[str, int], int]) -> None:
        self._value = JsonScanner()
        self._word.clear()
        self._want = want


class MistralHeader:
    """Mistral's newer form: `name[ARGS]{...}`, perhaps with `[CALL_ID]...` between."""

    __slots__ = ("_arguments", "_begun", "_names", "_new", "_word", "done", "name")

    def __init__(self, names: frozenset[str]) -> None:
        self.name, self.done = "", False
        self._names = names
        self._word: list[str] = []
        self._new: list[str] = []
        self._arguments = JsonScanner()
        self._begun = False

    def feed(self, text: str, at: int) -> int:
        """Reads on from `at`; where it stopped.  Raises `MalformedJson`."""
        if not self.name:
            at = self._head(text, at)
        if not self.name or at == len(text):
            return at
        try:
            end = self._arguments.feed(text, at)
        except MalformedJson as bad:
            self._new.append(text[at : bad.at])
            raise
        self._new.append(text[at:end])
        self.done = self._arguments.done
        return end

    def take(self) -> str:
        new = "".join(self._new)
        self._new.clear()
        return new

    def _head(self, text: str, at: int) -> int:
        found = _HEADER.match(text, at)
        assert found is not None
        self._word.append(found.group())
        end = found.end()
        if end == len(text):
            return end
        name = "".join(self._word).removesuffix("[ARGS]").split("[CALL_ID]")[0]
        if text[end] != "{" or name not in self._names:
            raise MalformedJson(end)
        self.name = name
        return end


def _is_object(text: str) -> bool:
    """Whether `text` is a JSON object and nothing else."""
    scanner = JsonScanner()
    if not text.startswith("{"):
        return False
    try:
        return scanner.feed(text, 0) == len(text) and scanner.done
    except MalformedJson:
        return False
