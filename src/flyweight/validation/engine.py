"""Checks settings of the engine that depend on one another, and its shares.

Invariant: what passes needs no other setting to change.  Knows no model and no machine.
"""

from math import inf
from typing import Any

from flyweight.errors import ConfigError
from flyweight.spec import KV_BLOCK, KV_TYPES
from flyweight.validation.setting import check_real, whole
from flyweight.validation.untrusted import spell


def check_engine(settings: Any) -> None:
    """Raises `ConfigError`."""
    # every decode gets its token every step
    most = settings.max_num_batched_tokens
    whole("max_num_batched_tokens", most, settings.max_num_seqs, 1 << 20)
    _check_block_size(settings)
    if settings.speculative_config and not settings.kv_cache:
        raise ConfigError(
            f"= {spell(settings.speculative_config)} is not supported with kv_cache = False",
            "speculative_config",
            code="bad_value",
            hint="leave one of them out",
        )
    if settings.max_kld is not None:
        check_real("max_kld", settings.max_kld, inf, "nats a token, above 0", "0.001")
    share = settings.kv_cache_metrics_sample
    check_real("kv_cache_metrics_sample", share, 1, "above 0 to 1", "0.01")


def _check_block_size(settings: Any) -> None:
    kept = KV_TYPES.get(settings.kv_cache_dtype)
    if kept is not None and kept.coded and settings.block_size % KV_BLOCK:
        near = -(-settings.block_size // KV_BLOCK) * KV_BLOCK
        raise ConfigError(
            f"is not supported with kv_cache_dtype = {kept.name}, which needs a multiple of "
            f"{KV_BLOCK}",
            "block_size",
            value=settings.block_size,
            hint=f"nearest valid: {near}",
        )
