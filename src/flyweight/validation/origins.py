"""Which origins a server may allow, by its settings: a page of an allowed origin reads answers.

Invariant: no page can send requests without a key, unless the settings say that this is wanted.
"""

import re
from typing import Any

from flyweight.errors import ConfigError

ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@,\x00-\x1f\x7f-\U0010ffff]+/?")


def check_origins(settings: Any) -> None:
    """Raises `ConfigError`."""
    for origin in settings.allowed_origins:
        if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
            near = re.sub(r"^(?:[a-z]+://)?([^/?#]*).*", r"\1", origin, flags=re.S)
            hint = f"; nearest valid: https://{near}" if near else ""
            raise ConfigError(
                "is not valid",
                "allowed_origins",
                value=origin,
                allowed=f"scheme://host, scheme://host:port, or * for all{hint}",
            )
    if "*" not in settings.allowed_origins:
        return
    if settings.allow_credentials:
        raise ConfigError(
            "and allow_credentials exclude each other: browsers reject this; list the origins",
            "allowed_origins",
            value="*",
        )
    if not settings.needs_key and not settings.insecure:
        raise ConfigError(
            "would let any web page in a local browser send requests; list the origins, give "
            "an --api-key, or use --insecure",
            "allowed_origins",
            value="*",
        )
