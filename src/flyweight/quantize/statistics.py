"""What calibration learns of the inputs of a matrix.

Invariant: sums are over all calibration tokens, in their order.  T tokens, K columns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from flyweight.errors import ConfigError
from flyweight.wire import F32

SAMPLE = 1024  # rows that are kept
Accumulate = Callable[[F32, F32], None]  # h [K, K] += x^T x, for x [T, K]


@dataclass(slots=True)
class InputStatistics:
    """Of a matrix with K columns: `gram` is the sum of x^T x [K, K] (the Hessian of the squared
    output error, times a factor), `sums` of |x| and `most` |x| by column [K], over `count` rows.
    `sample` has the first rows themselves.  Without `accumulate` only the diagonal of the sum is
    kept, as `squares`.
    """

    columns: int
    accumulate: Accumulate | None = None
    count: int = 0
    gram: F32 = field(init=False)
    squares: F32 = field(init=False)
    sums: F32 = field(init=False)
    most: F32 = field(init=False)
    sample: list[F32] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.columns if self.accumulate else 0
        self.gram = np.zeros((size, size), np.float32)
        self.squares, self.sums, self.most = (np.zeros(self.columns, np.float32) for _ in range(3))

    def take(self, x: F32) -> None:
        """Adds rows [T, K]."""
        if self.accumulate is not None:
            self.accumulate(self.gram, x)
        else:
            self.squares += np.einsum("tk,tk->k", x, x)
        missing = SAMPLE - sum(map(len, self.sample))
        if missing > 0:
            self.sample.append(x[:missing].copy())
        size = np.abs(x)
        self.sums += size.sum(axis=0)
        np.maximum(self.most, size.max(axis=0, initial=0), out=self.most)
        self.count += len(x)

    def check(self, slot: str) -> None:
        """Raises `ConfigError` where inputs of the slot, or their squares, were not finite."""
        if not (np.isfinite(self.sums).all() and np.isfinite(self.compute_mean_square()).all()):
            raise ConfigError(f"gives inputs of {slot} that are not finite", "calibration")

    def compute_mean_square(self) -> F32:
        """Mean of x^2 by column [K]: an importance matrix."""
        total = np.diagonal(self.gram) if self.accumulate else self.squares
        return np.asarray(total / np.float32(max(1, self.count)), np.float32)
