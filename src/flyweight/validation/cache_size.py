"""Checks the size of the K/V cache: blocks or bytes, and that one sequence fits.

Invariant: what passes needs no other setting to change.  Knows no model.
"""

from typing import Any

from flyweight.errors import ConfigError
from flyweight.validation.setting import whole


def check_cache_size(settings: Any) -> None:
    """Raises `ConfigError`."""
    blocks, size = settings.blocks, settings.block_size
    whole("blocks", blocks, 0, (2**31 - 1) // size)
    if blocks and settings.kv_cache_memory_bytes:
        raise ConfigError("blocks and kv_cache_memory_bytes exclude each other; give one")
    if not (blocks and settings.max_model_len):
        return
    least = -(-settings.max_model_len // size)
    if blocks < least:
        raise ConfigError(
            f"of {size} tokens hold less than one sequence of max_model_len = "
            f"{settings.max_model_len}",
            "blocks",
            value=blocks,
            hint=f"nearest valid: {least}",
        )
