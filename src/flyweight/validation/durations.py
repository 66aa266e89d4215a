"""Durations as users write them.

Invariant: what is accepted is above 0 and at most an hour.  Standard library only.
"""

import re

from flyweight.errors import ConfigError

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "": 1.0}


def parse_seconds(name: str, text: str) -> float:
    """`1s`, `60ms` or plain seconds, above 0 to an hour.  Raises `ConfigError`."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]{0,3})\s*", text, re.ASCII)
    if match is None or match[2] not in UNITS:
        raise ConfigError("is not a duration; write 60ms or 1.5s", name, value=text)
    found = float(match[1]) * UNITS[match[2]]
    if not 0 < found <= 3600:
        hint = f"nearest valid: {'1ms' if found <= 0 else '3600s'}"
        raise ConfigError(
            "is out of range", name, value=text, allowed="above 0 to 3600s", hint=hint
        )
    return found
