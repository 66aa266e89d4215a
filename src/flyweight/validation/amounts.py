"""Checks of times and prices that are settings.

Invariant: a refusal names the range and the nearest valid value.  Knows no setting.
"""

from flyweight.errors import ConfigError

MOST_SECONDS = 10**9
MOST_PRICE = 10**9


def check_seconds(name: str, value: object, least: int) -> None:
    """Raises `ConfigError` unless `value` is a time; 0 is one where `least` is."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise ConfigError("is not valid", name, value=value, allowed="seconds, above 0")
    if not (0 < value < MOST_SECONDS or value == least == 0):
        near = least if value <= 0 else MOST_SECONDS - 1
        allowed = "0 seconds or more" if least == 0 else "above 0 seconds"
        raise ConfigError(
            "is out of range",
            name,
            value=value,
            allowed=f"{allowed}, below {MOST_SECONDS}",
            hint=f"nearest valid: {near}",
        )


def check_price(name: str, value: object, least: int) -> None:
    """Raises `ConfigError` unless `value` is a price."""
    allowed = f"{least} or more, below {MOST_PRICE}"
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        raise ConfigError("is not valid", name, value=value, allowed=f"a number, {allowed}")
    if not least <= value < MOST_PRICE:
        near = least if value < least else MOST_PRICE - 1
        raise ConfigError(
            "is out of range", name, value=value, allowed=allowed, hint=f"nearest valid: {near}"
        )
