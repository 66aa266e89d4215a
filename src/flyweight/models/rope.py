"""Rotary frequencies: a checkpoint's rope settings to the inverse frequencies the ops rotate with.

Invariant: frequencies are fixed at load and never depend on a running length, so a token's rotation
depends on its position alone; where a published method lets the length decide (dynamic, longrope),
it is the longest the engine will run.  This module does not rotate anything.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError, nearest
from flyweight.models.config import MOST_POSITIONS, Config, read_integer, read_real
from flyweight.spec import RopeSpec
from flyweight.validation.untrusted import shown
from flyweight.wire import F32

ORIGINAL = "original_max_position_embeddings"
# What is read of a rope_scaling, where it is there
NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", ORIGINAL,
)  # fmt: skip
LISTS = ("factors", "short_factor", "long_factor")
Scaling = Mapping[str, Any]


def read_rope_spec(config: Config, head: int, section: str = "") -> RopeSpec:
    """Reads rope_theta and rope_scaling (or transformers 5's rope_parameters, or the `section` of
    it that some layers have) of a config.json, and refuses settings that give no frequencies.
    `head` elements a head has; partial_rotary_factor says how many of them turn.
    """
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if section and isinstance(nested, Mapping):
        nested = nested.get(section) or {}
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"rope_scaling = {shown(nested)} is not an object with a rope_type")
    kind = str(nested.get("rope_type") or nested.get("type") or "default")
    kind = {"su": "longrope"}.get(kind, kind)  # Phi-3's first name for it
    if kind not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        raise CheckpointError(
            f"rope_type = {shown(kind)} is not supported; known: {known}"
            f"{nearest(kind[:80], _KINDS)}"
        )
    part = read_real(
        nested, "partial_rotary_factor", read_real(config, "partial_rotary_factor", 1.0)
    )
    dim = int(head * min(part, 1.0) + 1e-6)  # 52 * (30 / 52) is 29.99
    if dim % 2 or dim < 2:
        raise CheckpointError(
            f"config: {dim} of {head} elements of a head turn; an even number is needed"
        )
    base = read_real(nested, "rope_theta", read_real(config, "rope_theta", 10000.0))
    scaling = _read_scaling(config, nested, kind)
    try:
        factor = _read_factor(nested, kind, scaling)
        rope = RopeSpec(dim, base, kind, tuple(sorted(scaling.items())), factor)
        for length in (1, MOST_POSITIONS):  # what is missing is missed now, not after the weights
            compute_inverse_frequencies(rope, length)
    except (ArithmeticError, ValueError):
        raise CheckpointError(
            f"rope_scaling of type {kind!r} gives no frequencies: base {base:g}, "
            f"{', '.join(f'{k} = {shown(v)}' for k, v in scaling.items())}"
        ) from None
    return rope


def compute_inverse_frequencies(rope: RopeSpec, length: int) -> F32:
    """float32 [dim/2]: radians a position turns each pair by, in a model that runs `length` tokens
    at most.  Raises `CheckpointError` when a setting is missing.
    """
    scaling = dict(rope.scaling)
    try:
        with np.errstate(all="ignore"):
            found = _KINDS[rope.kind](rope, scaling, length).astype(np.float32)
    except KeyError as key:
        raise CheckpointError(f"rope_scaling of type {rope.kind!r} lacks {key}") from None
    if not np.isfinite(found).all():
        raise CheckpointError(
            f"rope_scaling of type {rope.kind!r} gives frequencies that are not finite"
        )
    return found


def _read_scaling(config: Config, nested: Config, kind: str) -> dict[str, Any]:
    """What frequencies are made of, as numbers and tuples of numbers."""
    found: dict[str, Any] = {
        k: read_real(nested, k, 1) for k in NUMBERS if nested.get(k) is not None
    }
    found |= {k: _read_list(k, nested[k]) for k in LISTS if nested.get(k) is not None}
    positions = read_integer(config, "max_position_embeddings", 2048, MOST_POSITIONS)
    if kind in ("llama3", "yarn", "longrope") and ORIGINAL not in found:
        found[ORIGINAL] = read_real(config, ORIGINAL, float(positions))
    if kind in ("yarn", "longrope") and "factor" not in found:
        found["factor"] = positions / found[ORIGINAL]
    if kind == "yarn":
        found["truncate"] = float(bool(nested.get("truncate", True)))
    if kind == "dynamic":
        found["positions"] = float(positions)
    return found


def _read_factor(nested: Config, kind: str, scaling: Scaling) -> float:
    """What cos and sin are multiplied by."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    stretch = scaling["factor"]
    implied = 1.0
    if kind == "longrope" and stretch > 1:
        implied = math.sqrt(1 + math.log(stretch) / math.log(scaling[ORIGINAL]))
    elif kind == "yarn":
        above, below = (nested.get(key) for key in ("mscale", "mscale_all_dim"))
        if above and below:
            whole = read_real(nested, "mscale", 1), read_real(nested, "mscale_all_dim", 1)
            implied = compute_yarn_mscale(stretch, whole[0]) / compute_yarn_mscale(
                stretch, whole[1]
            )
        else:
            implied = compute_yarn_mscale(stretch, 1.0)
    return read_real(nested, "attention_factor", implied)


def compute_yarn_mscale(stretch: float, scale: float) -> float:
    """How much YaRN (Peng et al., 2023) raises attention for a context `stretch` times longer."""
    return 1.0 if stretch <= 1 else 0.1 * scale * math.log(stretch) + 1.0


def _read_list(key: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise CheckpointError(f"rope_scaling: {key} = {shown(values)}; a list is needed")
    return tuple(read_real({key: v}, key, 0) for v in values)


def _compute_powers(rope: RopeSpec) -> F32:
    """base ** (2i/dim), float32 [dim/2]: float32 operands, the power rounded once.  NumPy's float32
    power errs by up to 2 ulp, by processor, and a position multiplies what it is off by.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    powers = np.float64(np.float32(rope.base)) ** exponents.astype(np.float64)
    return powers.astype(np.float32)


def _compute_default(rope: RopeSpec, _: Scaling, __: int) -> F32:
    return (np.float32(1) / _compute_powers(rope)).astype(np.float32)


def _compute_linear(rope: RopeSpec, scaling: Scaling, length: int) -> F32:
    stretched: F32 = _compute_default(rope, scaling, length) / np.float32(scaling["factor"])
    return stretched


def _compute_dynamic(rope: RopeSpec, scaling: Scaling, length: int) -> F32:
    """NTK-aware: the base grows with the length, when it passes what the model was made for."""
    factor, positions = scaling["factor"], scaling["positions"]
    stretch = factor * max(length, positions) / positions - (factor - 1)
    base = rope.base * stretch ** (rope.dim / (rope.dim - 2))
    return _compute_default(RopeSpec(rope.dim, base), {}, length)


def _compute_llama3(rope: RopeSpec, scaling: Scaling, length: int) -> F32:
    """Llama 3.1's scaling: long wavelengths stretched by `factor`, short ones kept, a blend
    between.
    """
    inv = _compute_default(rope, scaling, length)
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling[ORIGINAL]
    if not low <= high:
        raise CheckpointError(
            f"rope_scaling: low_freq_factor = {low:g} must not be above high_freq_factor = {high:g}"
        )
    wavelength = (2 * math.pi / inv).astype(np.float32)
    between = high - low or 1.0  # Llama 4 has no blend
    blend = ((original / wavelength - low) / between).astype(np.float32)
    blended = (1 - blend) * inv / np.float32(factor) + blend * inv
    out = np.where(wavelength > original / low, inv / np.float32(factor), blended)
    return np.where(wavelength < original / high, inv, out).astype(np.float32)


def _compute_yarn(rope: RopeSpec, scaling: Scaling, length: int) -> F32:
    """Pairs that turn often keep their frequency, those that turn rarely are stretched by `factor`,
    with a ramp between (Peng et al., 2023).
    """
    powers, original = _compute_powers(rope), scaling[ORIGINAL]

    def pair(turns: float) -> float:
        """The pair that turns this many times over the original context."""
        return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair(scaling.get("beta_fast", 32.0)), pair(scaling.get("beta_slow", 1.0))
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high += 0.001 if low == high else 0
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = 1 - np.clip(ramp, 0, 1)
    stretched = 1 / (np.float32(scaling["factor"]) * powers)
    found: F32 = (stretched * (1 - kept) + 1 / powers * kept).astype(np.float32)
    return found


def _compute_longrope(rope: RopeSpec, scaling: Scaling, length: int) -> F32:
    """A divisor for every frequency, from the long list when the length passes the original."""
    which = "long_factor" if length > scaling[ORIGINAL] else "short_factor"
    return (1 / (_to_divisors(rope, which, scaling[which]) * _compute_powers(rope))).astype(
        np.float32
    )


def _compute_factors(rope: RopeSpec, scaling: Scaling, length: int) -> F32:
    """GGUF's rope_freqs tensor: one divisor per frequency, Llama 3.x's scaling already worked
    out.
    """
    divided: F32 = _compute_default(rope, {}, length) / _to_divisors(
        rope, "factors", scaling["factors"]
    )
    return divided


def _to_divisors(rope: RopeSpec, key: str, values: tuple[float, ...]) -> F32:
    if len(values) != rope.dim // 2:
        raise CheckpointError(
            f"rope_scaling: {key} has {len(values)} numbers, the head needs {rope.dim // 2}"
        )
    return np.array(values, np.float32)


_KINDS: dict[str, Callable[[RopeSpec, Scaling, int], F32]] = {
    "default": _compute_default,
    "linear": _compute_linear,
    "dynamic": _compute_dynamic,
    "llama3": _compute_llama3,
    "yarn": _compute_yarn,
    "longrope": _compute_longrope,
    "factors": _compute_factors,
}
