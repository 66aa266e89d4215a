"""Names of activations to what the kernels take.

Invariant: every name of ops/base.py has one; any other is refused, with the nearest.
"""

from flyweight import _native
from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import GATED_ACTS, PLAIN_ACTS

GATED = {kind: _native.GatedAct[kind] for kind in GATED_ACTS}
PLAIN = {kind: _native.PlainAct[kind] for kind in PLAIN_ACTS}


def find_gated(kind: str) -> _native.GatedAct:
    if kind not in GATED:
        raise ConfigError(_describe_unknown(kind, GATED_ACTS))
    return GATED[kind]


def find_plain(kind: str) -> _native.PlainAct:
    if kind not in PLAIN:
        raise ConfigError(_describe_unknown(kind, PLAIN_ACTS))
    return PLAIN[kind]


def _describe_unknown(kind: str, known: tuple[str, ...]) -> str:
    return f"activation = {kind!r}; allowed: {', '.join(known)}{nearest(kind, known)}"
