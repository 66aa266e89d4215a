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
from flyweight.untrusted import shown
from flyweight.wire import F32

ORIGINAL = "original_max_position_embeddings"
READ = ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)
LARGEST = 1e30


def real(config: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number above 0 of the config, or `CheckpointError` naming the key and the value."""
    value = config.get(key)
    value = default if value is None else value
    if not _is_number(value) or not 0 < value < LARGEST:
        raise CheckpointError(f"config: {key} = {str(value)[:80]}; it must be a number above 0")
    return float(value)


def rope_spec(config: Mapping[str, Any], dim: int) -> RopeSpec:
    """Reads rope_theta and rope_scaling (or transformers 5's rope_parameters) of a config.json, and
    refuses settings that give no frequencies.
    """
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"rope_scaling = {shown(nested)} is not an object with a rope_type")
    kind = str(nested.get("rope_type", nested.get("type", "default")))
    if kind not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        raise CheckpointError(
            f"rope_type = {shown(kind)} is not supported; known: {known}"
            f"{nearest(kind[:80], _KINDS)}"
        )
    base = real(nested, "rope_theta", real(config, "rope_theta", 10000.0))
    scaling = {key: real(nested, key, 1.0) for key in READ if nested.get(key) is not None}
    if kind == "factors":
        scaling |= _listed(nested.get("factors"))
    if kind == "llama3" and ORIGINAL not in scaling:
        scaling[ORIGINAL] = real(config, "max_position_embeddings", 2048.0)
    rope = RopeSpec(dim, base, kind, tuple(sorted(scaling.items())))
    inverse_frequencies(rope)  # what is missing is missed now, not after the weights are read
    return rope


def inverse_frequencies(rope: RopeSpec) -> F32:
    """float32 [dim/2]: radians a position turns each pair by.  Raises `CheckpointError` when a
    setting is missing.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    scaling = dict(rope.scaling)
    try:
        with np.errstate(all="ignore"):
            plain = (np.float32(1) / np.float32(rope.base) ** exponents).astype(np.float32)
            found = _KINDS[rope.kind](plain, scaling).astype(np.float32)
    except KeyError as key:
        raise CheckpointError(f"rope_scaling of type {rope.kind!r} lacks {key}") from None
    if not np.isfinite(found).all():
        raise CheckpointError(
            f"rope_scaling of type {rope.kind!r} gives frequencies that are not finite"
        )
    return found


def _listed(factors: object) -> dict[str, float]:
    if not isinstance(factors, list):
        raise CheckpointError(f"rope_scaling: factors = {str(factors)[:80]}; a list is needed")
    return {f"factor_{i:04d}": real({"factors": f}, "factors", 0) for i, f in enumerate(factors)}


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
    original = scaling[ORIGINAL]
    if not low < high:
        raise CheckpointError(
            f"rope_scaling: low_freq_factor = {low:g} must be below high_freq_factor = {high:g}"
        )
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
