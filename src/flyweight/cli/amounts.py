"""Options whose values are amounts: money, seconds, watts, counts.

Invariant: what is no number, or is out of range, is refused with the range and the nearest choice.
"""

from typing import Any

import typer


def amount(name: str, near: float, *flags: str, zero: bool = False, **shown: Any) -> Any:
    """An option of a number above 0, or of 0 and more; `near` is a choice that is valid."""

    def parse(text: str) -> float:
        from flyweight.planning.quantities import parse_number, parse_positive

        given = str(text)
        return parse_number(given, name, 0) if zero else parse_positive(given, name, near)

    return typer.Option(*flags, parser=parse, **shown)
