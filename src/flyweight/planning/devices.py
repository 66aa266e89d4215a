"""Devices by name: published memory, bandwidth, peaks, power and price, from `devices.json`.

Invariant: every device names where its figures are published; what is not published is None.  Peaks
are without sparsity.  This machine is not in the list: it is measured.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import read_bytes

FILE = Path(__file__).with_name("devices.json")
GIB = 1 << 30
KINDS = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class Device:
    """`bandwidth_gbs` is in 10^9 bytes a second, peaks in 10^12 operations a second, `watts` the
    rated power, `price_usd` what it cost at launch.  `unconfirmed` says which figures were found
    in no copy of the source.
    """

    name: str
    title: str
    kind: str
    memory_gib: float
    bandwidth_gbs: float
    source: str
    bf16_tflops: float | None = None
    int8_tops: float | None = None
    watts: float | None = None
    price_usd: float | None = None
    unconfirmed: str | None = None

    @property
    def memory(self) -> int:
        """Bytes."""
        return int(self.memory_gib * GIB)


def read_devices(file: Path = FILE) -> tuple[Device, ...]:
    """The devices of a file.  Raises `ConfigError` naming what is wrong."""
    try:
        listed = json.loads(read_bytes(file))
    except ValueError as error:
        raise ConfigError(f"is not valid JSON: {error}", "devices", value=str(file)) from None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise ConfigError("must be a JSON list of objects", "devices", value=str(file))
    return tuple(_read_device(one, f"devices[{i}]") for i, one in enumerate(listed))


def find_device(name: str, known: Sequence[Device]) -> Device:
    """Raises `ConfigError` that lists those there are."""
    for device in known:
        if device.name == name.lower():
            return device
    names = [device.name for device in known]
    raise ConfigError(
        "is unknown",
        "device",
        value=name,
        allowed=f"{', '.join(names)}{nearest(name.lower(), names)}",
    )


def _read_device(found: dict[str, Any], where: str) -> Device:
    known = {one.name: one.type for one in fields(Device)}
    for key, value in found.items():
        if key not in known:
            raise ConfigError(f"has {key!r}, which is unknown{nearest(key, known)}", where)
        text = known[key] in (str, str | None)
        good = isinstance(value, str) if text else _is_positive(value)
        if not good:
            what = "text" if text else "a number above 0"
            raise ConfigError("is not valid", f"{where}.{key}", value=value, allowed=what)
    missing = [one for one in ("name", "title", "kind", "memory_gib", "bandwidth_gbs", "source")
               if one not in found]  # fmt: skip
    if missing:
        raise ConfigError(f"has no {missing[0]}", where)
    if found["kind"] not in KINDS:
        raise ConfigError("is not valid", f"{where}.kind", value=found["kind"], allowed="cpu, gpu")
    return Device(**found)


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
