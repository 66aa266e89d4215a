"""What a chat template may cost: seconds, and characters made on the way to a prompt.

Invariant: what would pass a limit is refused before it is made, so that a template cannot exhaust
the process; a `BudgetSpent` says which limit.  Knows values and names of operations, not Jinja.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any

SECONDS = 5.0
GROWTH = 16  # characters of a prompt for each that was given
LEAST_CHARACTERS = 1 << 18  # that any conversation may become: the longest template, written once
MOST_CHARACTERS = 16 << 20  # of a prompt, and of any value on the way, whatever was given
MOST_MADE = 8 * MOST_CHARACTERS  # over one rendering
MOST_NUMBER = 1 << 20  # as an argument: widths, counts
MOST_BITS = 4096  # of a whole number
EACH = 16  # what a value that is not text counts as, in characters


class BudgetSpent(Exception):
    """A limit is reached."""


@dataclass(frozen=True, slots=True)
class RenderBounds:
    """What one rendering may cost: seconds, and characters for each that is given to it."""

    seconds: float = SECONDS
    growth: int = GROWTH

    def limit_characters(self, given: int) -> int:
        return min(max(self.growth * given, LEAST_CHARACTERS), MOST_CHARACTERS)


USUAL = RenderBounds()


@dataclass(slots=True)
class RenderMeter:
    """One rendering's account.  `opaque` gives the values inside an object of the template's own;
    no value may be of more than `most` characters.
    """

    opaque: Callable[[Any], Mapping[str, Any]] = lambda value: {}
    seconds: float = SECONDS
    most: int = MOST_CHARACTERS
    made: int = 0
    end: float = 0.0

    def start(self) -> None:
        self.end, self.made = monotonic() + self.seconds, 0

    def tick(self) -> bool:
        """Counts one step of repeated work; always true."""
        if monotonic() > self.end:
            raise BudgetSpent(f"takes more than {self.seconds:g} seconds")
        return True

    def charge(self, size: int) -> None:
        """`size` characters are about to be made."""
        self.made += size
        if size > self.most or self.made > MOST_MADE:
            raise self.make_error(size)

    def weigh(self, *values: object) -> int:
        """How many characters values would be as text, roughly; refuses as soon as too many."""
        total, left = 0, list(values)
        while left:
            value = left.pop()
            if isinstance(value, str | bytes):
                total += len(value)
                continue
            inside: Mapping[Any, Any] | Sequence[Any] = self.opaque(value)
            if isinstance(value, Mapping | list | tuple | set | frozenset):
                inside = value  # type: ignore[assignment]
            total += EACH * (1 + len(inside))
            if total > self.most:
                break
            left += chain(*inside.items()) if isinstance(inside, Mapping) else inside
        if total > self.most:
            raise self.make_error(total)
        return total

    def make_error(self, size: int) -> BudgetSpent:
        """What is said where one value has `size` characters, or all of them are too many."""
        most = self.most if size > self.most else MOST_MADE
        return BudgetSpent(f"writes more than {most} characters")

    def charge_result(self, value: Any) -> Any:
        """A value an operation made, charged for."""
        if isinstance(value, str | bytes | list | tuple):
            self.charge(len(value))
        return value

    def call(self, name: str, values: Sequence[Any], named: Mapping[str, Any]) -> None:
        """A function, method or filter `name` is about to work on `values`, the first of them what
        it belongs to.
        """
        self.tick()
        arguments = [*values, *named.values()]
        for value in arguments:
            if isinstance(value, int) and abs(value) > MOST_NUMBER:
                raise BudgetSpent(f"calls {name.removeprefix('safe_')} with {value:.3g}")
        if name in GROWS and values:
            self.charge(GROWS[name](self, values[0], arguments[1:]))

    def check_binary(self, sign: str, left: Any, right: Any) -> None:
        """`left sign right` is about to be computed."""
        self.tick()
        if isinstance(left, int) and isinstance(right, int):
            self._check_numbers(sign, left, right)
        elif sign == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(many, "__len__"):
                    self.charge(len(many) * max(times, 0))
        elif sign == "%" and isinstance(left, str):
            self.charge(_measure_format(self, left, [right]))
        elif sign == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            self.charge(len(left) + len(right))

    def _check_numbers(self, sign: str, left: int, right: int) -> None:
        bits = left.bit_length() * abs(right) if sign == "**" else 0
        bits = left.bit_length() + right.bit_length() if sign == "*" else bits
        if bits > MOST_BITS:
            raise BudgetSpent(f"makes a number of more than {MOST_BITS} bits")


Grows = Callable[[RenderMeter, Any, list[Any]], int]


def _measure_format(meter: RenderMeter, form: Any, values: list[Any]) -> int:
    """A form with values put in, as often as it could name them; widths count too."""
    text = str(form)
    holes = text.count("%") + text.count("{")
    widths = sum(int(number) for number in _find_numbers(text))
    return len(text) + holes * meter.weigh(*values) + widths


def _find_numbers(text: str) -> Iterator[str]:
    """Runs of digits, cut where they are absurd."""
    digits = "".join(c if c in "0123456789" else " " for c in text)
    return (number[:9] for number in digits.split())


def _measure_replace(meter: RenderMeter, text: Any, values: list[Any]) -> int:
    old, new = ([str(value) for value in values] + ["", ""])[:2]
    whole = str(text)
    return len(whole) + whole.count(old) * len(new)


def _measure_join(meter: RenderMeter, first: Any, values: list[Any]) -> int:
    """The separator's method, or the list's filter: one of them is the text between."""
    many = next((v for v in (first, *values) if isinstance(v, list | tuple | Mapping)), ())
    between = max((len(v) for v in (first, *values) if isinstance(v, str)), default=0)
    return meter.weigh(many) + between * len(many)


def _measure_widening(meter: RenderMeter, text: Any, values: list[Any]) -> int:
    """Each character or line may become as wide as a number says."""
    width = max((v for v in values if isinstance(v, int)), default=8)
    parts = str(text).count("\t") + str(text).count("\n") + 1
    return len(str(text)) + parts * max([width, *(len(v) for v in values if isinstance(v, str))])


def _measure_translate(meter: RenderMeter, text: Any, values: list[Any]) -> int:
    table = values[0] if values and isinstance(values[0], Mapping) else {}
    longest = max((len(v) for v in table.values() if isinstance(v, str)), default=1)
    return len(str(text)) * max(1, longest)


def _measure_dump(meter: RenderMeter, value: Any, values: list[Any]) -> int:
    """JSON or a printed value: all of it, each part on a line, indented by its depth."""
    indent = max((v for v in values if isinstance(v, int)), default=0)
    return meter.weigh(value) * (1 + indent)


GROWS: Mapping[str, Grows] = {
    "replace": _measure_replace,
    "join": _measure_join,
    "format": _measure_format,
    "format_map": _measure_format,
    "strftime_now": _measure_format,
    "expandtabs": _measure_widening,
    "indent": _measure_widening,
    "wordwrap": _measure_widening,
    "translate": _measure_translate,
    "tojson": _measure_dump,
    "pprint": _measure_dump,
    "string": _measure_dump,
    "dictsort": _measure_dump,
    "xmlattr": _measure_dump,
    "urlencode": _measure_dump,
}
