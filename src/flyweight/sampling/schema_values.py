"""What the plain keywords of a JSON schema may be given, and its numbers as the grammar engine
reads them: as floats, of whose digits it writes patterns.

Invariant: the ranges that come out are no wider than those that went in, their ends of at most 15
digits; what cannot be said so is refused with its place.  Knows no engine.
"""

import sys
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from flyweight.sampling.patterns import LONGEST_TEXT
from flyweight.sampling.schema_keywords import UnsupportedSchema, refuse
from flyweight.validation.untrusted import shown

DIGITS, PLACES = 15, 9  # of a bound: all that a float holds for certain, and after the point
MOST = 10**DIGITS - 1
MOST_EACH = 10**9 - 1  # of multipleOf, counted in its last place
EXACT = 2**53  # a float holds every whole number up to it
POWER = 22  # of ten: the last one a float holds, by which digits are shifted without a loss
End = tuple[Decimal, bool, str]  # of a range, whether it is open, and what a closed one is called
FLOAT = sys.float_info.max
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")

SIZES = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
MOST_SIZE = 2**32 - 1
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def shape_value(name: str, value: Any, place: str) -> Any:
    """The keyword's value as it is enforced.  Raises `RequestError` with its place."""
    if name in SIZES:
        found = _read_size(value, place)
        if name == "minLength" and found > LONGEST_TEXT:
            raise UnsupportedSchema(place, f"{found}; allowed: up to {LONGEST_TEXT}")
        return min(found, LONGEST_TEXT) if name == "maxLength" else found
    if name == "required" and not _are_names(value):
        refuse(place, f"{shown(value)}; allowed: a list of names")
    if name == "enum" and not isinstance(value, list):
        refuse(place, f"{shown(value)}; allowed: a list of values")
    return value


def _read_size(value: Any, place: str) -> int:
    """Also one that is spelled with a point, `2.0`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST_SIZE or value != int(value):
        refuse(place, f"{shown(value)}; allowed: whole numbers from 0 to {MOST_SIZE}")
    return int(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def tighten_range(schema: dict[str, Any], place: str, *, exactly: bool) -> None:
    """Writes a schema's range as `minimum` and `maximum`; `exactly`: nothing may be left out of it,
    for it says what another schema does not hold.  Raises `RequestError`.
    """
    _check_each(schema, place)
    for name in ("const", "enum"):
        if name in schema:
            _check_values(schema[name], f"{place}/{name}")
    low, high = (
        [_read_end(schema, name, place, exactly) for name in names if name in schema]
        for names in (LOWER, UPPER)
    )
    ends = ([max(low)] if low else []) + ([min(high, key=_rank_end)] if high else [])
    if low and high:
        _check_meet(max(low), min(high, key=_rank_end), place)
    for name in (*LOWER, *UPPER):
        schema.pop(name, None)
    for end, is_open, plain in ends:
        name = plain if not is_open else f"exclusive{plain.capitalize()}"
        schema[name] = int(end) if end == end.to_integral_value() else float(end)


def _rank_end(end: End) -> tuple[Decimal, bool]:
    """Of upper ends: an open one is tighter."""
    return end[0], not end[1]


def _check_meet(low: End, high: End, place: str) -> None:
    """Raises `RequestError` where no number is between."""
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])):
        raise UnsupportedSchema(place, f"no number can be written from {low[0]:f} to {high[0]:f}")


def _read_end(schema: dict[str, Any], name: str, place: str, exactly: bool) -> End:
    """The nearest number within that has digits enough.  An open end goes by a last place where
    that leads away from 0: there the engine may take it for a closed one.
    """
    given = _read_number(schema[name], f"{place}/{name}")
    up = name in LOWER
    plain = "minimum" if up else "maximum"
    if abs(given) > MOST:
        if exactly or (given > 0) == up:
            problem = f"{shown(schema[name])}; allowed: from -{MOST} to {MOST}"
            raise UnsupportedSchema(f"{place}/{name}", problem)
        return Decimal(MOST).copy_sign(given), False, plain
    whole = schema.get("type") == "integer"
    places = 0 if whole else min(PLACES, DIGITS - max(1, given.adjusted() + 1))
    step = Decimal(1).scaleb(-places)
    end = given.quantize(step, ROUND_CEILING if up else ROUND_FLOOR) + 0  # no -0
    if end != given and exactly and not whole:
        allowed = f"up to {DIGITS} digits, {PLACES} of them after the point, with oneOf"
        raise UnsupportedSchema(f"{place}/{name}", f"{shown(schema[name])}; allowed: {allowed}")
    if end != given or name == plain:
        return end, False, plain
    if whole or not end or (end > 0) == up:
        return end + (step if up else -step), False, plain
    return end, True, plain


def _check_each(schema: dict[str, Any], place: str) -> None:
    """Raises `RequestError` unless multiples can be recognised by their digits."""
    if "multipleOf" not in schema:
        return
    at, value = f"{place}/multipleOf", schema["multipleOf"]
    each = _read_number(value, at).normalize()
    exponent = int(each.as_tuple().exponent)
    if not (each > 0 and exponent >= -PLACES and each.scaleb(max(0, -exponent)) <= MOST_EACH):
        allowed = f"above 0, up to {MOST_EACH}, of up to {PLACES} digits"
        raise UnsupportedSchema(at, f"{shown(value)}; allowed: {allowed}")


def _check_values(given: object, place: str) -> None:
    """Raises `RequestError` where a number's neighbour would be written in its place."""
    for value in _list_within(given):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        exact = len(digits) <= DIGITS and abs(int(exponent)) <= POWER
        exact = exact or (isinstance(value, int) and abs(value) <= EXACT)
        if not exact:
            raise UnsupportedSchema(
                place,
                f"{shown(value)}; allowed: whole numbers from -2^53 to 2^53, others of up to "
                f"{DIGITS} digits",
            )


def _list_within(value: object) -> Iterator[object]:
    """All values, to any depth."""
    left = [value]
    while left:
        one = left.pop()
        yield one
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one


def _read_number(value: object, place: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(place, f"{shown(value)} is not a number")
    if not -FLOAT <= value <= FLOAT:
        raise UnsupportedSchema(place, f"{shown(value)}; allowed: what a float can hold")
    return Decimal(repr(value))
