"""Checks of the values of a request: ranges and kinds, refused in one line that names the field.

Invariant: a refusal names the value, what is allowed and, where there is one, the nearest valid
choice; what passes is of Python's own kinds.  Standard library only; knows no field.
"""

import math
from collections.abc import Collection
from contextlib import suppress
from numbers import Integral, Real

from flyweight.errors import RequestError, nearest


def require(ok: bool, name: str, value: object, allowed: str, near: object = None) -> None:
    if not ok:
        hint = "" if near is None else f"nearest valid: {near}"
        raise RequestError("is out of range", name, value=value, allowed=allowed, hint=hint)


def check_size(name: str, count: int, unit: str, most: int, least: int = 0) -> None:
    """A number of things, such as strings or bytes, from `least` to `most`."""
    if not least <= count <= most:
        allowed = f"{least} to {most}" if least else f"up to {most} {unit}"
        raise RequestError(
            f"has {count} {unit}",
            name,
            allowed=allowed,
            hint=f"nearest valid: {min(max(count, least), most)}",
        )


def check_kind(ok: bool, name: str, value: object, allowed: str) -> None:
    """The same for a value of another kind."""
    if not ok:
        raise RequestError("is not valid", name, value=value, allowed=allowed)


def check_loaded(adapter: str, known: Collection[str]) -> None:
    """The name of an adapter there is, or "" for none."""
    if adapter and adapter not in known:
        raise RequestError(
            f"is not loaded; known: {', '.join(known) or 'none'}{nearest(adapter, known)}",
            "adapter",
            value=adapter,
        )


def number(name: str, value: object) -> float:
    """Any real number, NumPy's scalars too, as a float."""
    found = math.nan
    known = isinstance(value, Real) and not isinstance(value, bool)
    check_kind(known, name, value, "a finite number")
    with suppress(OverflowError):  # a whole number too large for a float
        found = float(value)  # type: ignore[arg-type]
    require(math.isfinite(found), name, value, "a finite number")
    return found


def within(name: str, value: object, low: float, high: float) -> float:
    """A real number from low to high."""
    found = number(name, value)
    near = min(max(found, float(low)), float(high))
    require(near == found, name, value, f"{low:g} to {high:g}", near)
    return found


def check_list(name: str, value: object) -> tuple[object, ...]:
    if value is None:
        return ()
    check_kind(isinstance(value, list | tuple | set | frozenset), name, value, "a list, or none")
    return tuple(value)  # type: ignore[arg-type]


def whole(name: str, value: object, low: int, high: int | None, *, none: bool = False) -> int:
    """A whole number, NumPy's too, as an int; 0 for an allowed None, which the caller keeps."""
    if value is None and none:
        return 0
    top = "" if high is None else f" to {high}"
    allowed = f"a whole number, {low}{top or ' or more'}" + (", or none" if none else "")
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise RequestError("is not valid", name, value=value, allowed=allowed)
    found = int(value)
    ok = found >= low and (high is None or found <= high)
    require(ok, name, found, allowed, low if found < low else high)
    return found


def strings(name: str, value: object, most: int, longest: int) -> tuple[str, ...]:
    """One string, or a list of up to `most`, each of 1 to `longest` characters."""
    found = (value,) if isinstance(value, str) else check_list(name, value)
    check_size(name, len(found), "strings", most)
    for s in found:
        fits = isinstance(s, str) and 0 < len(s) <= longest
        allowed = f"strings of 1 to {longest} characters"
        require(fits, name, s if fits else str(s)[:80], allowed)
    return found  # type: ignore[return-value]
