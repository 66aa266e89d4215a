"""Checks the settings of peers of the prefix cache: addresses, and what they need besides.

Invariant: what passes names a directory and a secret where it names a peer.  Knows no network.
"""

import os
import re
from typing import Any, NamedTuple

from flyweight.errors import ConfigError

MOST_PEERS = 64
ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})")
FORM = "HOST:PORT, HOST:PORT, ..."
USUAL_PORT = 8100  # in hints


class PeerAddress(NamedTuple):
    """Where a peer listens; `str` of it is as options have it."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def check_peers(settings: Any) -> None:
    """Raises `ConfigError`."""
    peers, listen = settings.prefix_cache_peers, settings.prefix_cache_listen
    secret, rate = settings.prefix_cache_secret_file, settings.prefix_cache_peer_rate
    parse_peers(peers)
    parse_listen(listen)
    if secret is not None and not (isinstance(secret, str | os.PathLike) and os.fspath(secret)):
        raise ConfigError(
            "is not valid", "prefix_cache_secret_file", value=secret, allowed="a file, or none"
        )
    given = {
        "prefix_cache_peers": peers,
        "prefix_cache_listen": listen,
        "prefix_cache_secret_file": secret,
    }
    for name, value in given.items():
        if value and settings.prefix_cache_dir is None:
            raise ConfigError(
                "has no effect without a directory; give prefix_cache_dir too", name, value=value
            )
        if value and secret is None:
            raise ConfigError(
                "needs a secret that the peers share; give prefix_cache_secret_file too", name,
                value=value,
            )  # fmt: skip
    if rate and not listen:
        raise ConfigError(
            "has no effect where no peer is served; give prefix_cache_listen too",
            "prefix_cache_peer_rate", value=rate,
        )  # fmt: skip


def parse_peers(text: object) -> tuple[PeerAddress, ...]:
    """The addresses of `HOST:PORT, ...`, none of an empty text.  Raises `ConfigError`."""
    found = _parse("prefix_cache_peers", text, FORM, 1)
    if len(found) > MOST_PEERS:
        raise ConfigError(f"has {len(found)} addresses", "prefix_cache_peers",
                          allowed=f"up to {MOST_PEERS}")  # fmt: skip
    twice = next((one for i, one in enumerate(found) if one in found[:i]), None)
    if twice is not None:
        raise ConfigError(
            "is given twice", "prefix_cache_peers", value=str(twice), allowed="each once"
        )
    return found


def parse_listen(text: object) -> PeerAddress | None:
    """The address to listen on; port 0 is any free port.  Raises `ConfigError`."""
    found = _parse("prefix_cache_listen", text, "HOST:PORT", 0)
    if len(found) > 1:
        raise ConfigError("is not valid", "prefix_cache_listen", value=text,
                          allowed="HOST:PORT", hint=f"nearest valid: {found[0]}")  # fmt: skip
    return found[0] if found else None


def _parse(name: str, text: object, form: str, low: int) -> tuple[PeerAddress, ...]:
    if not isinstance(text, str):
        raise ConfigError("is not valid", name, value=text, allowed=form)
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    return tuple(_parse_address(name, word, form, low) for word in words)


def _parse_address(name: str, word: str, form: str, low: int) -> PeerAddress:
    match = ADDRESS.fullmatch(word)
    if match is not None and low <= int(match[3]) <= 65535:
        return PeerAddress((match[1] or match[2]).lower(), int(match[3]))
    plain = re.fullmatch(r"([A-Za-z0-9._-]{1,253})(?::[0-9]*)?", word)
    raise ConfigError(
        "is not valid", name, value=word, allowed=f"{form}, ports from {low} to 65535",
        hint=f"nearest valid: {plain[1]}:{USUAL_PORT}" if plain else "",
    )  # fmt: skip
