"""What the plain keywords of a JSON schema may be given: lengths, counts, names, values.

Invariant: what passes is of the shape JSON Schema wants of that keyword, whole numbers as such.
Knows no grammar engine.
"""

from typing import Any, NoReturn

from flyweight.errors import RequestError
from flyweight.sampling.pattern_size import LONGEST_TEXT
from flyweight.sampling.patterns import FIELD
from flyweight.validation.untrusted import shown

SIZES = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
MOST = 2**32 - 1
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def shaped(name: str, value: Any, place: str) -> Any:
    """The keyword's value as it is enforced.  Raises `RequestError` with its place."""
    if name in SIZES:
        found = _size(value, place)
        if name == "minLength" and found > LONGEST_TEXT:
            _refuse(place, f"{found}; allowed: up to {LONGEST_TEXT}")
        return min(found, LONGEST_TEXT) if name == "maxLength" else found
    if name == "required" and not _names(value):
        _refuse(place, f"{shown(value)}; allowed: a list of names")
    if name == "enum" and not isinstance(value, list):
        _refuse(place, f"{shown(value)}; allowed: a list of values")
    return value


def _size(value: Any, place: str) -> int:
    """Also one that is spelled with a point, `2.0`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST or value != int(value):
        _refuse(place, f"{shown(value)}; allowed: whole numbers from 0 to {MOST}")
    return int(value)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _refuse(place: str, what: str) -> NoReturn:
    raise RequestError(f": at {shown(place)}: {what}", f"{FIELD}.json")
