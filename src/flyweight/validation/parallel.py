"""Checks what cannot be combined with several ranks.

Invariant: what passes needs no other setting to change.  Knows no model.
"""

from typing import Any

from flyweight.errors import ConfigError

MODEL_FREE = ("ngram", "suffix")  # methods that draft without a model


def check_parallel(settings: Any) -> None:
    """Raises `ConfigError`."""
    if settings.enable_expert_parallel and settings.tensor_parallel_size == 1:
        raise ConfigError(
            "needs several ranks for the experts of a layer", "enable_expert_parallel", value=True,
            hint="set tensor_parallel_size to 2 or more",
        )  # fmt: skip
    for option in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(settings, option) > 1:
            _check_ranks(settings, f"{option} = {getattr(settings, option)}")


def _check_ranks(settings: Any, chosen: str) -> None:
    drafts = settings.speculation
    for name, default in (("adapters", {}), ("prefix_cache_dir", None), ("swap_space", 0)):
        if getattr(settings, name) != default:
            raise _refuse(name, getattr(settings, name), chosen)
    if settings.backend == "reference":
        raise _refuse("backend", settings.backend, chosen, "cpu, cuda")
    if settings.backend == "cuda" and settings.enable_expert_parallel:
        raise _refuse("enable_expert_parallel", True, "backend = 'cuda'")
    if drafts is not None and drafts.method not in MODEL_FREE:
        raise _refuse("speculative_config.method", drafts.method, chosen, ", ".join(MODEL_FREE))


def _refuse(name: str, value: object, chosen: str, allowed: str = "") -> ConfigError:
    return ConfigError(
        f"is not supported with {chosen}", name, value=value, allowed=allowed,
        hint="leave one of them out",
    )  # fmt: skip
