"""Options: rows made from the declared settings, and values read by their rows.

Invariant: a declared setting that belongs to a group has a row, with its default as it would be
written.  A value that is not of its row's kind is refused with the option's name; ranges are
checked by the settings.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from flyweight.config import parse_bytes
from flyweight.errors import ConfigError
from flyweight.validation.setting import Kind, find_kind, find_setting

Value = bool | str | list[str]
KIB, MIB = 1 << 10, 1 << 20
COUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?([kKmMgG]?)")
NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # a value, though it begins as an option does
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Flag:
    """An option.  `sets` is the field that it sets, `engine.` or `server.`; without one, a function
    applies it.  `also` are further spellings; --no- switches a switch off.  `none` are values that
    mean None, `default` is the default as it would be written, or in words.
    """

    name: str
    kind: Kind
    help: str
    sets: str = ""
    metavar: str = ""
    also: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    default: str = ""
    group: str = field(default="", kw_only=True)

    @property
    def spellings(self) -> tuple[str, ...]:
        return (f"--{self.name}", *self.also)

    @property
    def key(self) -> str:
        """Its name as a key in Python."""
        return self.name.replace("-", "_")


def make_flags(settings: type[Any], owner: str) -> Iterator[Flag]:
    """The options that the fields of a class of settings declare; `owner` is engine or server."""
    for known in fields(settings):
        found = find_setting(known)
        if found is None or not found.group:
            continue
        yield Flag(
            name=found.option or known.name.replace("_", "-"),
            kind=find_kind(known),
            help=found.help,
            sets="" if found.special else f"{owner}.{known.name}",
            metavar=found.unit,
            also=found.also,
            none=found.none,
            default=found.default or describe_default(known),
            group=found.group,
        )


def describe_default(known: "Field[Any]") -> str:
    """The default of a field as its option would be written; empty where it is off or unset."""
    value = known.default
    if isinstance(value, bool):
        return "on" if value else ""
    if isinstance(value, tuple):
        return " ".join(value)
    if find_kind(known) == "size" and isinstance(value, int):
        return f"{value / MIB:g}MiB" if value >= MIB else f"{value / KIB:g}KiB"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int | str) else ""


def convert(flag: Flag, value: Value) -> Any:
    """A value of its flag's kind.  Raises `ConfigError`."""
    name = f"--{flag.name}"
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return tuple(one for word in value for one in split_list(word))
    if value in flag.none:
        return None
    if flag.kind == "whole":
        if not re.fullmatch(r"[+-]?[0-9]{1,30}", value.strip(), re.ASCII):
            raise ConfigError("is not valid", name, value=value, allowed="a whole number")
        return int(value)
    if flag.kind == "count":
        return count(name, value)
    if flag.kind == "size":
        return parse_bytes(value, 0, name)
    if flag.kind == "number":
        return number(name, value)
    return value


def split_list(word: str) -> list[str]:
    """A JSON list of texts, as vLLM has lists, in one word; any other word is itself."""
    try:
        found = json.loads(word) if word.startswith("[") else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return found
    return [word]


def count(name: str, text: str) -> int:
    """4096, 32k (32,000) or 32K (32,768), as vLLM reads them."""
    match = COUNT.fullmatch(text.strip())
    if match is None:
        raise ConfigError("is not valid", name, value=text, allowed="a number, as 4096 or 32k")
    scale = UNITS[match[3]]
    whole, part = match[1], match[2] or ""
    return int(whole + part) * scale // int("1" + "0" * len(part))


def number(name: str, text: str) -> float:
    """A number.  Raises `ConfigError`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e18:
        raise ConfigError("is not valid", name, value=text, allowed="a number")
    return value


def format_value(value: Value) -> str:
    """A value as it was written."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else " ".join(value)


def spell_switch(name: str, value: Value) -> str:
    """A switch as it was written."""
    return f"--no-{name}" if value is False else f"--{name}"


def name_fields(flags: Mapping[str, Flag]) -> dict[str, str]:
    """Fields of settings to the options that set them."""
    pairs = ((flag.sets.partition(".")[2], flag.name) for flag in flags.values())
    return {known: f"--{name}" for known, name in pairs if known}
