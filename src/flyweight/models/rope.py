"""Rotary frequencies: a checkpoint's rope settings to the inverse frequencies the ops rotate with.

Invariant: frequencies are fixed at load and never depend on a running length, so a token's rotation
depends on its position alone.  This module does not rotate anything.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError, nearest
from flyweight.spec import RopeSpec
from flyweight.wire import F32


def rope_spec(config: Mapping[str, Any], dim: int) -> RopeSpec:
    """Reads rope_theta and rope_scaling (or transformers 5's rope_parameters) of a config.json."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"rope_scaling = {nested!r} is not an object with a rope_type")
    kind = str(nested.get("rope_type", nested.get("type", "default")))
    if kind not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        raise CheckpointError(
            f"rope_type = {kind!r} is not supported; known: {known}{nearest(kind, _KINDS)}"
        )
    base = float(nested.get("rope_theta", config.get("rope_theta", 10000.0)))
    factors = nested.get("factors", ())
    scaling = {k: float(v) for k, v in nested.items() if _is_number(v) and k != "rope_theta"}
    scaling |= {f"factor_{i:04d}": float(f) for i, f in enumerate(factors)}
    if kind == "llama3" and "original_max_position_embeddings" not in scaling:
        scaling["original_max_position_embeddings"] = float(config["max_position_embeddings"])
    return RopeSpec(dim, base, kind, tuple(sorted(scaling.items())))


def inverse_frequencies(rope: RopeSpec) -> F32:
    """float32 [dim/2]: radians a position turns each pair by.  Raises `CheckpointError` when a
    setting is missing.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    plain = (np.float32(1) / np.float32(rope.base) ** exponents).astype(np.float32)
    scaling = dict(rope.scaling)
    try:
        return _KINDS[rope.kind](plain, scaling).astype(np.float32)
    except KeyError as key:
        raise CheckpointError(f"rope_scaling of type {rope.kind!r} lacks {key}") from None


def _is_number(v: object) -> bool:
    return isinstance(v, int | float) and not isinstance(v, bool)


def _default(inv: F32, _: Mapping[str, float]) -> F32:
    return inv


def _linear(inv: F32, scaling: Mapping[str, float]) -> F32:
    return inv / np.float32(scaling["factor"])


def _llama3(inv: F32, scaling: Mapping[str, float]) -> F32:
    """Llama 3.1's scaling: long wavelengths stretched by `factor`, short ones kept, a blend
    between.
    """
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    wavelength = (2 * math.pi / inv).astype(np.float32)
    blend = ((original / wavelength - low) / (high - low)).astype(np.float32)
    blended = (1 - blend) * inv / np.float32(factor) + blend * inv
    out = np.where(wavelength > original / low, inv / np.float32(factor), blended)
    return np.where(wavelength < original / high, inv, out).astype(np.float32)


def _factors(inv: F32, scaling: Mapping[str, float]) -> F32:
    """GGUF's rope_freqs tensor: one divisor per frequency, Llama 3.x's scaling already worked
    out.
    """
    factors = [v for k, v in sorted(scaling.items()) if k.startswith("factor_")]
    if len(factors) != len(inv):
        raise CheckpointError(f"rope_freqs has {len(factors)} factors, the head needs {len(inv)}")
    return (inv / np.array(factors, np.float32)).astype(np.float32)


_KINDS: dict[str, Callable[[F32, Mapping[str, float]], F32]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "factors": _factors,
}
