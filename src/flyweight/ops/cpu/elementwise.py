"""Norms, activations, sums and row copies: names and kinds in, one native call each.

Invariant: nothing is computed or copied here; the kernels check dtype, shape and contiguity.  This
module knows no weights' layout.
"""

from flyweight import _native
from flyweight.errors import ConfigError, nearest
from flyweight.wire import F32, I32

KINDS = {kind.name: kind for kind in (_native.Act.silu, _native.Act.gelu, _native.Act.gelu_tanh)}


def norm(pool: _native.Pool, x: F32, w: F32, eps: float) -> F32:
    return _native.norm(pool, x, w, eps)


def add_norm(pool: _native.Pool, x: F32, residual: F32, w: F32, eps: float) -> F32:
    return _native.add_norm(pool, x, residual, w, eps)


def act(pool: _native.Pool, x: F32, kind: str) -> F32:
    if kind not in KINDS:
        allowed = ", ".join(KINDS)
        raise ConfigError(f"activation = {kind!r}; allowed: {allowed}{nearest(kind, KINDS)}")
    return _native.act(pool, x, KINDS[kind])


def add(pool: _native.Pool, x: F32, residual: F32) -> None:
    _native.add(pool, x, residual)


def take(pool: _native.Pool, x: F32, rows: I32) -> F32:
    return _native.take(pool, x, rows)
