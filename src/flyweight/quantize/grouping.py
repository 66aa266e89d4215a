"""Rows cut into groups along K.

Invariant: a group never runs on from row to row, as `GroupedWeight` needs.
"""

from flyweight.errors import ConfigError
from flyweight.wire import F32


def split_groups(rows: F32, group: int) -> F32:
    """Rows [N, K] as a view [N, K / group, group].  Raises `ConfigError` where groups do not divide
    K.
    """
    n, k = rows.shape
    if group < 1 or k % group:
        nearest = min((d for d in range(1, k + 1) if k % d == 0), key=lambda d: abs(d - group))
        raise ConfigError(
            f"does not divide rows of {k} elements", "group_size", value=group,
            hint=f"nearest valid: {nearest}",
        )  # fmt: skip
    return rows.reshape(n, k // group, group)
