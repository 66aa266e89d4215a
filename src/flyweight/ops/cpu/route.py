"""Choosing experts: the fields of `RouteSpec` in, one native call.

Invariant: nothing is computed here; the kernel checks dtype, shape and range.
"""

from flyweight import _native
from flyweight.spec import RouteSpec
from flyweight.wire import F32, I32


def route(pool: _native.Pool, logits: F32, spec: RouteSpec, bias: F32 | None) -> tuple[I32, F32]:
    scoring = _native.Scoring[spec.scoring]
    groups = spec.groups, spec.kept, spec.judges
    rule = (spec.top, scoring, spec.normalise, spec.scale, *groups)
    return _native.route(pool, logits, bias, rule)
