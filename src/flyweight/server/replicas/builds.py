"""What replicas that give the same answers have in common, besides what their engines report.

Invariant: equal facts mean the same code that computes, and adapters with the same weights, byte
for byte.  Reads whole files, on whichever machine it runs.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from flyweight.errors import ConfigError

CODE, ADAPTERS = "code", "adapter_weights"  # names of facts


def describe_build(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of this machine for engines with these settings.  Raises `FlyweightError`."""
    from flyweight.external_cache import read_code  # it imports what computes

    code = read_code(settings.get("backend") or "cpu").hex()
    return {CODE: code, ADAPTERS: fingerprint_adapters(settings.get("adapters") or {})}


def fingerprint_adapters(adapters: Mapping[str, Any]) -> list[str]:
    """Of the weights and the config of each adapter's folder.  Raises `FlyweightError`."""
    if not adapters:
        return []
    from flyweight.external_cache import make_adapter_fingerprint
    from flyweight.weights.adapter import open_adapter

    found = list[str]()
    for name, path in adapters.items():
        try:
            with closing(open_adapter(Path(path).expanduser())) as adapter:
                found.append(make_adapter_fingerprint(adapter, shared=True))
        except OSError as error:
            raise ConfigError(f"adapter {name}: {error.strerror or error}") from None
    return found
