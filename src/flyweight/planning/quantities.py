"""What people write for sizes of models and bits of a weight, and how amounts are written back.

Invariant: what is parsed is finite and within its range; else the `ConfigError` names the field,
the value, the range and the nearest valid choice.
"""

import re
from collections.abc import Callable
from math import inf

from flyweight.arguments.options import count
from flyweight.config import parse_bytes
from flyweight.errors import ConfigError, nearest

UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
LEAST_PARAMS, MOST_PARAMS = 1e3, 1e15
LEAST_BITS, MOST_BITS = 1.0, 32.0
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
POSITIVE = "above 0, finite"
LEAST_SIZE = 1 << 20  # of a memory; less is a unit that was forgotten
NUMBER = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]?)", re.ASCII)


def parse_params(text: str, name: str = "params") -> float:
    """A number of parameters: 8B, 8b, 500M, 8000000000.  Raises `ConfigError`."""
    found = NUMBER.fullmatch(text.strip())
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ConfigError(
            "is not a number of parameters",
            name,
            value=text,
            allowed="8B, 500M, 8000000000",
            hint=f"nearest valid: {_find_near(text)}",
        )
    count = float(found[1]) * unit
    if LEAST_PARAMS <= count <= MOST_PARAMS:
        return count
    bare = f"{float(found[1]):g}B"  # 8 is meant as 8B
    low = bare if not found[2] and count >= 1 else "1K"
    raise ConfigError(
        "is out of range",
        name,
        value=text,
        allowed="above 0, from 1K to 1000T",
        hint=f"nearest valid: {low if count < LEAST_PARAMS else '1000T'}",
    )


def parse_bits(text: str, name: str = "bits") -> float:
    """Bits of a weight, from 1 to 32; fractions are what scales add.  Raises `ConfigError`."""
    return parse_number(text, name, LEAST_BITS, MOST_BITS)


def parse_list(text: str, parse: Callable[[str, str], float], name: str) -> list[float]:
    """Values between commas, each once, in the order given.  Raises `ConfigError`."""
    return list(dict.fromkeys(parse(word.strip(), name) for word in text.split(",")))


def parse_number(text: str, name: str, low: float, high: float = inf) -> float:
    """A number from `low` to `high`.  Raises `ConfigError`."""
    try:
        value = float(text)
    except ValueError:
        near = f"nearest valid: {_spell(low)}"
        raise ConfigError(
            "is not a number", name, value=text, allowed=_describe(low, high), hint=near
        ) from None
    return check_range(value, name, low, high)


def parse_positive(text: str, name: str, near: float) -> float:
    """A number above 0; `near` is a choice that is.  Raises `ConfigError`."""
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(
            "is not a number",
            name,
            value=text,
            allowed=POSITIVE,
            hint=f"nearest valid: {_spell(near)}",
        ) from None
    return check_positive(value, name, near)


def parse_whole(text: str, name: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`; 32k and 32K too, as in --max-model-len.  Raises
    `ConfigError`.
    """
    if not re.fullmatch(r"\s*[+-]?\d{1,15}\s*[kKmM]?\s*", text, re.ASCII):
        raise ConfigError(
            "is not a whole number",
            name,
            value=text,
            allowed=_describe(low, high),
            hint=f"nearest valid: {_round_text(text, low, high)}",
        )
    bare = text.strip()
    if bare.startswith("-"):
        return int(check_range(int(bare.rstrip("kKmM ")), name, low, high))
    return int(check_range(count(name, bare.lstrip("+")), name, low, high))


def parse_size(text: str, name: str) -> int:
    """Bytes of a memory: 24GiB, 512MB.  A number without a unit is bytes, so 24 for 24GiB is
    refused as too small.  Raises `ConfigError`.
    """
    size = parse_bytes(text, 0, name)
    if size < LEAST_SIZE:
        unit = f"; {text.strip()}GiB with a unit" if text.strip().isdecimal() and size else ""
        raise ConfigError("is out of range", name, value=text, allowed="1MiB or more",
                          hint=f"nearest valid: 1MiB{unit}")  # fmt: skip
    return size


def check_range(value: float, name: str, low: float, high: float = inf) -> float:
    """The value, from `low` to `high`.  Raises `ConfigError`."""
    if low <= value <= high and value != inf:
        return value
    near = high if value > high else low
    raise ConfigError(
        "is out of range",
        name,
        value=_unwiden(value),
        allowed=_describe(low, high),
        hint=f"nearest valid: {_spell(near)}" if near != inf else "",
    )


def check_positive(value: float, name: str, near: float) -> float:
    """The value, above 0; `near` is a choice that is.  Raises `ConfigError`."""
    if 0 < value < inf:
        return value
    raise ConfigError(
        "is out of range",
        name,
        value=_unwiden(value),
        allowed=POSITIVE,
        hint=f"nearest valid: {_spell(near)}",
    )


def write_params(count: float) -> str:
    """8B, 0.5B, 15M."""
    for unit, name in ((1e12, "T"), (1e8, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / UNITS[name]:.4g}{name}"
    return f"{count:g}"


def write_gb(amount: float) -> str:
    """Bytes as decimal gigabytes, which the documents use: 4.8 GB, 0.875 GB, 60.8 MB."""
    if amount < 1e8:
        return f"{amount / 1e6:,.3g} MB"
    return f"{amount / 1e9:,.3g} GB" if amount < 1e12 else f"{amount / 1e9:,.0f} GB"


def _round_text(text: str, low: int, high: int) -> int:
    """The nearest whole number to what a text says."""
    try:
        return min(max(round(float(text)), low), high)
    except (ValueError, OverflowError):
        return low


def _describe(low: float, high: float) -> str:
    return f"{_spell(low)} to {_spell(high)}" if high < inf else f"{_spell(low)} or more"


def _unwiden(value: float) -> float:
    """The number as it was typed: 33, not 33.0."""
    return int(value) if abs(value) < 1e15 and value == int(value) else value


def _spell(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:g}"


def _find_near(text: str) -> str:
    """8B of `eight` or of `8 billion`; else a common size."""
    digits = re.search(r"\d+(?:\.\d+)?", text, re.ASCII)
    if digits and float(digits[0]) > 0:
        return f"{float(digits[0]):g}B"
    for i, word in enumerate(WORDS, 1):
        if nearest(text.lower(), [word], 0.7):
            return f"{i}B"
    return "8B"
