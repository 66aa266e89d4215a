"""Norms, activations, sums, factors and row copies: names and kinds in, one native call each.

Invariant: nothing is computed or copied here; the kernels check dtype, shape and contiguity.  This
module knows no weights' layout.
"""

from flyweight import _native
from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import GATED_ACTS, PLAIN_ACTS
from flyweight.wire import F32, I32

GATED = {kind: _native.GatedAct[kind] for kind in GATED_ACTS}
PLAIN = {kind: _native.PlainAct[kind] for kind in PLAIN_ACTS}


def norm(pool: _native.Pool, x: F32, w: F32, eps: float) -> F32:
    return _native.norm(pool, x, w, eps)


def add_norm(pool: _native.Pool, x: F32, residual: F32, w: F32, eps: float) -> F32:
    return _native.add_norm(pool, x, residual, w, eps)


def layer_norm(pool: _native.Pool, x: F32, w: F32, b: F32 | None, eps: float) -> F32:
    return _native.layer_norm(pool, x, w, b, eps)


def act(pool: _native.Pool, x: F32, kind: str) -> F32:
    return _native.act(pool, x, gated(kind))


def activate(pool: _native.Pool, x: F32, kind: str) -> F32:
    if kind not in PLAIN:
        raise ConfigError(_unknown(kind, PLAIN_ACTS))
    return _native.activate(pool, x, PLAIN[kind])


def gated(kind: str) -> _native.GatedAct:
    if kind not in GATED:
        raise ConfigError(_unknown(kind, GATED_ACTS))
    return GATED[kind]


def _unknown(kind: str, known: tuple[str, ...]) -> str:
    return f"activation = {kind!r}; allowed: {', '.join(known)}{nearest(kind, known)}"


def add(pool: _native.Pool, x: F32, residual: F32) -> None:
    _native.add(pool, x, residual)


def scale(pool: _native.Pool, x: F32, by: float) -> None:
    _native.scale(pool, x, by)


def softcap(pool: _native.Pool, x: F32, cap: float) -> None:
    _native.softcap(pool, x, cap)


def gate(pool: _native.Pool, x: F32, logits: F32) -> None:
    _native.gate(pool, x, logits)


def take(pool: _native.Pool, x: F32, rows: I32) -> F32:
    return _native.take(pool, x, rows)
