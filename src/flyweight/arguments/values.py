"""Values of options: from text to numbers and bytes.

Invariant: what is not of its kind is refused with the option's name; ranges are not known here.
"""

import json
import re
from typing import Any

from flyweight.arguments.flags import Flag
from flyweight.arguments.stance import Value
from flyweight.config import parse_bytes
from flyweight.errors import ConfigError

COUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?([kKmMgG]?)")
NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # a value, though it begins as an option does
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def converted(flag: Flag, value: Value) -> Any:
    """A value of its flag's kind.  Raises `ConfigError`."""
    name = f"--{flag.name}"
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return tuple(one for word in value for one in listed(word))
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


def listed(word: str) -> list[str]:
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
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e18:
        raise ConfigError("is not valid", name, value=text, allowed="a number")
    return value
