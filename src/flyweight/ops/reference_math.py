"""What the reference computes with, in plain NumPy: rounding, norms, rotation, attention of one
token, activations, and the choice of experts as `RouteSpec` says it.

Invariant: as in reference.py: a row's result depends on that row alone.  T tokens, E experts, k
chosen.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import DENSE_KINDS, Array, from_bf16_bits, to_bf16_bits
from flyweight.ops.grouped import GroupedWeight
from flyweight.ops.operands import HeadNorm, Rotation
from flyweight.spec import RouteSpec
from flyweight.wire import F32, F64, I32

GROUP = 32  # elements of an activation row that share one int8 scale


# --- weights and activations ---


def find_kind(part: GroupedWeight | Array) -> str:
    return part.kind if isinstance(part, GroupedWeight) else DENSE_KINDS[part.dtype.name]


def to_floats(part: GroupedWeight | Array) -> F32:
    if isinstance(part, GroupedWeight):
        return part.dequantize()
    return from_bf16_bits(part) if part.dtype == np.uint16 else part.astype(np.float32)


def list_factors(part: GroupedWeight | Array, rounds: bool) -> F64:
    """The factors of products, [N,K] by code; with `rounds` the values of the table are bf16."""
    assert isinstance(part, GroupedWeight)
    by_code = replace(part, columns=None)
    if rounds:
        table = from_bf16_bits(to_bf16_bits(np.array(part.values, np.float32)))
        by_code = replace(by_code, values=tuple(map(float, table)))
    return by_code.dequantize().astype(np.float64)


def round_static(x: F32, scale: float) -> F64:
    """The nearest whole multiples of a calibrated scale, of -127 to 127 times it."""
    codes = np.clip(np.rint(x / np.float32(scale)), -127, 127)
    exact: F64 = codes.astype(np.float64) * np.float64(np.float32(scale))
    return exact


def round_rows(x: F32, to: str) -> F64:
    """[T,K] float64 of the values `linear` multiplies with."""
    if to == "bf16":
        return from_bf16_bits(to_bf16_bits(x)).astype(np.float64)
    if to == "int8":
        codes, scales = quantize_rows(x)
        return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), GROUP, axis=1)
    return x.astype(np.float64)


def quantize_rows(x: F32) -> tuple[NDArray[np.int8], F32]:
    """[T,K] -> int8 codes [T,K], float32 scales [T,K/32]; x ~ code * scale.  Float32 throughout."""
    groups = x.reshape(len(x), x.shape[1] // GROUP, GROUP)
    amax = np.abs(groups).max(axis=2)  # [T, K/32]
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / amax
    inverse[np.isinf(inverse)] = 0  # an all-zero group, or one whose inverse is beyond float32
    scales = np.where(inverse > 0, amax / np.float32(127), np.float32(0))
    codes = np.rint(groups * inverse[:, :, None]).astype(np.int8)
    return codes.reshape(x.shape), scales


# --- attention, norms, activations ---


def compute_rms(x: F32, w: F32, eps: float) -> F64:
    wide = x.astype(np.float64)
    mean = (wide * wide).mean(axis=-1, keepdims=True)
    normed: F64 = wide / np.sqrt(mean + eps) * w
    return normed


def rotate(x: F32 | F64, rope: Rotation) -> F32:
    """[T,heads,D]: turns the pair (x[i], x[i+half]) by angle i; what is beyond 2*half stays."""
    half = rope.cos.shape[1]
    cos, sin = rope.cos[:, None, :].astype(np.float64), rope.sin[:, None, :].astype(np.float64)
    a, b = x[..., :half], x[..., half : 2 * half]
    turned = [a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]]
    return np.concatenate(turned, axis=-1).astype(np.float32)


def normalize_heads(x: F32, dim: int, norms: HeadNorm | None, which: str) -> F32 | F64:
    """[T,heads*dim] -> [T,heads,dim], normed head by head or, by the weights' size, as a whole."""
    shape = (len(x), -1, dim)
    if norms is None:
        return x.reshape(shape)
    w = norms.q if which == "q" else norms.k
    parts = x.reshape(shape) if len(w) == dim else x
    return compute_rms(parts, w, norms.eps).reshape(shape)


def attend_one(q: F32, k: F64, v: F64, scale: float, softcap: float, sinks: F32 | None) -> F64:
    """q [Hq,Dk], k and v [n,Hk,D] -> [Hq*Dv].  Query head h reads KV head h // (Hq/Hk)."""
    grouped = q.astype(np.float64).reshape(k.shape[1], -1, k.shape[2])  # [Hk,G,D]
    scores = np.einsum("hgd,nhd->hgn", grouped, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    top = scores.max(axis=2, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(axis=2, keepdims=True)
    if sinks is not None:  # next to a maximum far below, a sink takes everything
        with np.errstate(over="ignore"):
            total = total + np.exp(sinks.astype(np.float64).reshape(*total.shape) - top)
    mixed: F64 = np.einsum("hgn,nhd->hgd", p, v) / total
    return mixed.reshape(-1)


def compute_sigmoid(x: F64) -> F64:
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        return np.asarray(1 / (1 + np.exp(-x)))


def activate(x: F64, kind: str, known: tuple[str, ...]) -> F64:
    if kind not in known:
        raise ConfigError(describe_unknown("activation", kind, known))
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "silu":
        factor = compute_sigmoid(x)
    elif kind == "gelu":
        factor = 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(x / -math.sqrt(2))
    else:
        factor = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    product: F64 = x * factor
    return product


def describe_unknown(name: str, value: str, allowed: tuple[str, ...]) -> str:
    return f"{name} = {value!r}; allowed: {', '.join(allowed)}{nearest(value, allowed)}"


# --- experts ---


def route(logits: F32, spec: RouteSpec, bias: F32 | None) -> tuple[I32, F32]:
    """[T,E] -> ids [T,k], best first, and their weights [T,k]."""
    wide = logits.astype(np.float64)
    scores = wide
    if spec.scoring == "softmax":
        scores = _compute_softmax(wide)
    elif spec.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-wide))
    chosen_by = scores if bias is None else scores + bias
    if spec.groups > 1:
        chosen_by = _keep_best_groups(chosen_by, spec)
    ids = np.argsort(-chosen_by, axis=1, kind="stable")[:, : spec.top]
    weights = np.take_along_axis(scores, ids, axis=1)
    if spec.scoring == "chosen":
        weights = _compute_softmax(weights)
    if spec.normalise:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return ids.astype(np.int32), (weights * spec.scale).astype(np.float32)


def _compute_softmax(x: Array) -> Array:
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _keep_best_groups(scores: Array, spec: RouteSpec) -> Array:
    """Scores with the experts of all but the best `kept` groups out of the running."""
    grouped = scores.reshape(len(scores), spec.groups, spec.experts // spec.groups)
    best = -np.sort(-grouped, axis=2)[:, :, : spec.judges]
    worth = np.where(np.isnan(grouped).any(axis=2), np.nan, best.sum(axis=2))
    order = np.argsort(-worth, axis=1, kind="stable")
    kept = np.zeros(order.shape, bool)
    np.put_along_axis(kept, order[:, : spec.kept], True, axis=1)
    return np.where(kept[:, :, None], grouped, -np.inf).reshape(scores.shape)
