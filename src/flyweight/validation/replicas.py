"""Checks how many replicas there are to be, and where.

Invariant: what passes needs no other setting to change.  Standard library only.
"""

import re
from typing import Any

from flyweight.errors import ConfigError

MOST_REPLICAS = 1024
BOUNDS = re.compile(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})")
ADDRESS = re.compile(r"auto|[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


def find_replica_option(settings: Any) -> str:
    """The option that requests replicas; empty where one engine process serves."""
    if settings.autoscale:
        return "--autoscale"
    if settings.replicas > 1:
        return "--replicas"
    return "--ray-address" if settings.ray_address else ""


def find_replica_bounds(settings: Any) -> tuple[int, int]:
    """The fewest and the most replicas of checked settings."""
    found = BOUNDS.fullmatch(settings.autoscale)
    return (int(found[1]), int(found[2])) if found else (settings.replicas, settings.replicas)


def check_replicas(settings: Any) -> None:
    """Raises `ConfigError`."""
    _check_autoscale(settings.autoscale)
    if settings.autoscale and settings.replicas != 1:
        raise ConfigError(
            "cannot be combined with --replicas", "autoscale", value=settings.autoscale,
            hint="leave one of them out",
        )  # fmt: skip
    address = settings.ray_address
    if address and not ADDRESS.fullmatch(address):
        raise ConfigError(
            "is not valid", "ray_address", value=address, allowed="HOST:PORT, or auto",
            hint="nearest valid: 127.0.0.1:6379",
        )  # fmt: skip
    if settings.routing != "prefix" and not find_replica_option(settings):
        raise ConfigError(
            "has no effect on one engine process; give --replicas too", "routing",
            value=settings.routing,
        )  # fmt: skip


def _check_autoscale(given: str) -> None:
    found = BOUNDS.fullmatch(given)
    least, most = (int(found[1]), int(found[2])) if found else (1, 2)
    fits = found is not None and least <= most <= MOST_REPLICAS
    if given and not fits:
        near = min(max(least, most), MOST_REPLICAS)
        raise ConfigError(
            "is not valid", "autoscale", value=given,
            allowed=f"MIN:MAX, two numbers from 1 to {MOST_REPLICAS} that do not fall",
            hint=f"nearest valid: {min(least, near)}:{near}",
        )  # fmt: skip
