"""One call of a tool as Qwen3-Coder writes it: a function's tag, and a tag for each parameter with
its value as plain text.

Invariant: `take` gives JSON; a value is what stands between its tags without the line breaks next
to them, and ends at the first closing tag.  What no JSON of the parameter's types can be made of is
a string.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from flyweight.text.tools.jsontext import BLANKS, MalformedJson, escape_surrogates, skip_blanks

FUNCTION, PARAMETER = "<function=", "<parameter="
END, CLOSE = "</function>", "</parameter>"
LONGEST_TAG = 256
LITERALS = {"True": "true", "False": "false", "None": "null"}  # as templates spell them
TEXT = frozenset({"string"})
ANY: frozenset[str] = frozenset()
Types = Mapping[str, frozenset[str]]


def read_types(schema: Mapping[str, Any] | None) -> dict[str, frozenset[str]]:
    """What JSON the parameters of a schema may be; empty where it does not say."""
    properties = (schema or {}).get("properties")
    found = {}
    for name, one in properties.items() if isinstance(properties, Mapping) else ():
        given = one.get("type") if isinstance(one, Mapping) else None
        listed = given if isinstance(given, list) else [given]
        found[name] = frozenset(kind for kind in listed if isinstance(kind, str))
        if not found[name] and isinstance(one, Mapping):
            values = one["enum"] if isinstance(one.get("enum"), list) else [one.get("const")]
            found[name] = TEXT if all(isinstance(value, str) for value in values) else ANY
    return found


class XmlCall:
    """`typed`: of each tool, the types of its parameters."""

    __slots__ = (
        "_held", "_names", "_new", "_part", "_seen", "_tags", "_typed", "_types", "_want", "_word",
        "done", "name",
    )  # fmt: skip

    def __init__(self, names: frozenset[str], typed: Mapping[str, Types]) -> None:
        self.name, self.done = "", False
        self._names, self._typed = names, typed
        self._tags: tuple[str, ...] = (FUNCTION,)  # that may come
        self._word = ""  # of the tag that is being read
        self._types = TEXT  # of the value that is
        self._part: list[str] | None = None  # of a value once it has begun
        self._held = ""  # of a value: what may be its end
        self._seen: set[str] = set()
        self._new: list[str] = []
        self._want: Callable[[str, int], int] = self._tag

    def feed(self, text: str, at: int) -> int:
        """Reads on from `at`; where it stopped.  Raises `MalformedJson`."""
        while at < len(text) and not self.done:
            at = self._want(text, at)
        return at

    def take(self) -> str:
        taken = "".join(self._new)
        self._new.clear()
        return taken

    def _between(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        self._word, self._want = "", self._tag
        return at

    def _tag(self, text: str, at: int) -> int:
        """A letter of a tag."""
        c, word = text[at], self._word + text[at]
        if c == ">" and word == END and END in self._tags:
            self._new.append("}")
            self.done = True
        elif c == ">" and self._word.startswith(self._tags[0]):
            self._open_tag(self._word.removeprefix(self._tags[0]), at)
        elif not any(_is_possible(word, tag) for tag in self._tags):
            raise MalformedJson(at)
        self._word = word
        return at + 1

    def _open_tag(self, name: str, at: int) -> None:
        """A tag that opens."""
        if not self.name:
            if name not in self._names:
                raise MalformedJson(at)
            self.name, self._tags = name, (PARAMETER, END)
            self._new.append("{")
            self._want = self._between
            return
        if not name or name in self._seen:
            raise MalformedJson(at)
        self._new.append(f"{', ' if self._seen else ''}{json.dumps(name, ensure_ascii=False)}: ")
        self._seen.add(name)
        self._types = self._typed.get(self.name, {}).get(name, TEXT)
        self._part, self._held, self._want = None, "", self._value

    def _value(self, text: str, at: int) -> int:
        data = self._held + text[at:]
        end = data.find(CLOSE)
        if end < 0:
            kept = _count_partial_end(data)
            self._held = data[len(data) - kept :]
            self._emit_value(data[: len(data) - kept])
            return len(text)
        at = len(text) - (len(data) - end - len(CLOSE))
        self._emit_value(data[:end], last=True)
        self._want = self._between
        return at

    def _emit_value(self, new: str, *, last: bool = False) -> None:
        """More of a value; strings are returned as they come."""
        begins = self._part is None
        if not new and not last:
            return
        if begins:
            self._part, new = [], new.removeprefix("\n")
        if last:
            new = new.removesuffix("\n")
        assert self._part is not None
        if self._types != TEXT:
            self._part.append(new)
            if last:
                self._new.append(to_json("".join(self._part), self._types))
            return
        self._new.append('"' * begins + json.dumps(new, ensure_ascii=False)[1:-1] + '"' * last)


def to_json(text: str, types: frozenset[str]) -> str:
    """The JSON that a parameter of these types has for its text."""
    plain = text.strip()
    try:
        value = json.loads(LITERALS.get(plain, plain))
        made = escape_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return made if _is_one(value, types) else json.dumps(text, ensure_ascii=False)


def _is_one(value: object, types: frozenset[str]) -> bool:
    """Whether a value may stand where a string might have."""
    if "string" not in types:
        return True
    kinds = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, list: {"array"},
             dict: {"object"}, type(None): {"null"}, str: {"string"}}  # fmt: skip
    return bool(kinds[type(value)] & types)


def _is_possible(word: str, tag: str) -> bool:
    """Whether a word may become the tag, or is the beginning of an opening one with its name."""
    if len(word) <= len(tag):
        return tag.startswith(word)
    rest = word[len(tag) :]
    return (
        tag[-1] == "="
        and word.startswith(tag)
        and len(word) < LONGEST_TAG
        and rest[-1] not in ("<\n")
    )


def _count_partial_end(data: str) -> int:
    """Letters at the end that may be the beginning of a value's end."""
    mark = "\n" + CLOSE
    for count in range(min(len(mark) - 1, len(data)), 0, -1):
        if data.endswith((mark[:count], CLOSE[:count])):
            return count
    return 0
