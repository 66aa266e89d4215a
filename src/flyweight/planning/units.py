"""How seconds, bytes, operations and shares are written for people, short enough for a table.

Invariant: three significant digits, whatever the size.
"""

from dataclasses import dataclass

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The unit that all times of a table are written in."""

    name: str
    seconds: float

    @classmethod
    def of(cls, most: float) -> "TimeUnit":
        """The one for a table whose longest time is `most`."""
        name, unit = next(((n, u) for u, n in SECONDS if most >= 10 * u), ("us", 1e-6))
        return cls(name, unit)

    def write(self, seconds: float) -> str:
        return _write_digits(seconds / self.seconds)


def write_seconds(seconds: float) -> str:
    """12.3 ms, 456 us, 1.23 s."""
    for unit, name in SECONDS:
        if seconds >= 0.9995 * unit or name == "us":
            return f"{_write_digits(seconds / unit)} {name}"
    return ""


def write_count(count: float) -> str:
    """Operations in thousands: 5.16M, 1.2G."""
    return _scale(count, 1000.0, ("", "K", "M", "G", "T", "P"))


def write_binary(nbytes: float) -> str:
    """Bytes in units of 1024: 117 KiB, 1.25 GiB."""
    return _scale(nbytes, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"))


def write_ratio(value: float) -> str:
    """A number of at most three digits: 0.25, 13.2, 960."""
    return _write_digits(value)


def write_share(share: float) -> str:
    """87 %."""
    return f"{100 * share:.0f} %"


def write_rate(value: float) -> str:
    """Tokens or requests a second: 1,230, 45.6, 0.0123."""
    return f"{value:,.0f}" if value >= 100 else _write_digits(value)


def _scale(value: float, base: float, names: tuple[str, ...]) -> str:
    for name in names[:-1]:
        if value < 0.9995 * base:
            return f"{_write_digits(value)}{name}"
        value /= base
    return f"{_write_digits(value)}{names[-1]}"


def _write_digits(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
