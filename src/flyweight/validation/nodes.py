"""Checks the settings of a model over several nodes.

Invariant: what passes names a secret, or an address of loopback.  Knows no network.
"""

from ipaddress import ip_address
from typing import Any

from flyweight.errors import ConfigError

MASTER_ADDR, MASTER_PORT = "127.0.0.1", 29501  # vLLM's


def check_nodes(settings: Any) -> None:
    """Raises `ConfigError`."""
    count, ranks = settings.nnodes, settings.ranks
    if count == 1:
        _check_unused(settings)
        return
    if ranks % count:
        valid = [n for n in range(1, ranks + 1) if ranks % n == 0]
        near = max((n for n in valid if n < count), default=1)
        hint = f"nearest valid: {near}" if ranks > 1 else "set tensor_parallel_size too"
        raise ConfigError(
            f"nodes cannot have as many of the {ranks} ranks each", "nnodes", value=count,
            allowed=", ".join(map(str, valid)), hint=hint,
        )  # fmt: skip
    if settings.node_rank >= count:
        raise ConfigError(
            f"is out of range with nnodes = {count}", "node_rank", value=settings.node_rank,
            allowed=f"a whole number, 0 to {count - 1}", hint=f"nearest valid: {count - 1}",
        )  # fmt: skip
    if not settings.master_addr.strip():
        raise ConfigError(
            "is not valid", "master_addr", value=settings.master_addr,
            allowed="an address of node 0's host",
        )  # fmt: skip
    if settings.node_secret_file is None and not is_loopback(settings.master_addr):
        raise ConfigError(
            "is not loopback, and needs a secret that the nodes share; give node_secret_file too",
            "master_addr", value=settings.master_addr,
            hint="openssl rand -hex 32 > FILE; chmod 600 FILE; copy it to all hosts",
        )  # fmt: skip


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_unused(settings: Any) -> None:
    unused = {"node_rank": 0, "master_addr": MASTER_ADDR, "master_port": MASTER_PORT,
              "node_secret_file": None}  # fmt: skip
    for name, default in unused.items():
        value = getattr(settings, name)
        if value != default:
            raise ConfigError(
                "has no effect on one node; give nnodes too", name,
                value=value if isinstance(value, int) else str(value),
            )  # fmt: skip
