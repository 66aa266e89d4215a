"""Checks the settings of the external prefix cache: sizes, and what it cannot be combined with.

Invariant: what passes needs no other setting to change.  Knows no file.
"""

import os
from math import nan
from typing import Any

from flyweight.errors import ConfigError

MOST_GIB = 1 << 20


def check_external_cache(settings: Any) -> None:
    """Raises `ConfigError`."""
    check_gib("prefix_cache_gb", settings.prefix_cache_gb, above=0)
    check_gib("swap_space", settings.swap_space)
    path = settings.prefix_cache_dir
    if path is not None and not (isinstance(path, str | os.PathLike) and os.fspath(path)):
        raise ConfigError(
            "is not valid", "prefix_cache_dir", value=path, allowed="a directory, or none"
        )
    drafts = settings.speculation
    if drafts is not None and drafts.states:
        other = f"drafts of method {drafts.method}, whose states of tokens are not kept"
        hint = "nearest valid: method draft_model or ngram"
    elif not settings.kv_cache or not settings.enable_prefix_caching:
        off = "enable_prefix_caching" if settings.kv_cache else "kv_cache"
        other, hint = f"{off} = False", "leave one of them out"
    else:
        return
    for name in ("prefix_cache_dir", "swap_space"):
        value = getattr(settings, name)
        if value:
            raise ConfigError(f"is not supported with {other}", name, value=value, hint=hint)


def check_gib(name: str, value: object, above: float | None = None) -> None:
    """Raises `ConfigError` unless `value` is a number of GiB from 0, or above `above`."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    amount = float(value) if known else nan  # type: ignore[arg-type]
    if (amount >= 0 if above is None else amount > above) and amount <= MOST_GIB:
        return
    low = "from 0" if above is None else f"above {above:g}"
    raise ConfigError(
        "is not valid", name, value=value, allowed=f"a number of GiB, {low} to {MOST_GIB}",
        hint=f"nearest valid: {0 if above is None else 1}",
    )  # fmt: skip
