"""What calibration measures of the input of a group of matrices, and the error it predicts.

Invariant: statistics of parts, merged, are those of the whole, up to rounding.  Knows no model and
no method.
"""

from dataclasses import dataclass

import numpy as np

from flyweight.wire import F32


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """Of the rows x [K] that went into matrices [N, K]: `gram` [K, K] the mean of x xT, `mean` [K]
    the mean of |x|, `peak` [K] its maximum, `tokens` the number of rows.
    """

    gram: F32
    mean: F32
    peak: F32
    tokens: int

    @classmethod
    def measure(cls, x: F32) -> "InputStatistics":
        """Of rows [T, K], T > 0."""
        size = np.abs(x)
        return cls((x.T @ x) / np.float32(len(x)), size.mean(axis=0), size.max(axis=0), len(x))

    def merge(self, other: "InputStatistics") -> "InputStatistics":
        """Of both sets of rows."""
        tokens = self.tokens + other.tokens
        old, new = np.float32(self.tokens / tokens), np.float32(other.tokens / tokens)
        return InputStatistics(
            old * self.gram + new * other.gram,
            old * self.mean + new * other.mean,
            np.maximum(self.peak, other.peak),
            tokens,
        )

    def divide(self, scales: F32) -> "InputStatistics":
        """Of x / scales, which is what matrices read once `scales` [K] are folded."""
        inverse: F32 = np.reciprocal(scales)
        return InputStatistics(
            self.gram * inverse * inverse[:, None],
            self.mean * inverse,
            self.peak * inverse,
            self.tokens,
        )

    def measure_error(self, difference: F32) -> float:
        """The mean over rows x of ||difference x||^2, for a difference of matrices [N, K]."""
        return float(np.vdot(difference @ self.gram, difference))
