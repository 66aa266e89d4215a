"""SmoothQuant (Xiao et al., 2023): outliers of activations are moved into the weights, so that both
can be rounded to int8.

Invariant: scales are positive and finite, and 1 for a channel without input or weight.  `folds`
says where they go.
"""

from collections.abc import Callable, Sequence

import numpy as np

from flyweight.errors import ConfigError
from flyweight.wire import F32

ALPHA = 0.5  # the paper's: half of the difficulty moves
LEAST = np.float32(1e-5)


def compute_scales(
    group: Sequence[F32],
    most: F32,
    alpha: float = ALPHA,
    tie: Callable[[F32], F32] | None = None,
) -> F32:
    """Scales [K] = most^alpha / max|w|^(1-alpha) for matrices [N, K] that share an input whose
    largest magnitudes are `most` [K].  `tie` makes scales equal that must be (`Fold.tie`).
    Raises `ConfigError` for an alpha outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        nearest = min(max(alpha, 0.0), 1.0) if alpha == alpha else ALPHA
        raise ConfigError(
            "is not valid", "alpha", value=alpha, allowed="0 to 1",
            hint=f"nearest valid: {nearest:g}",
        )  # fmt: skip
    weights = np.max([np.abs(w).max(axis=0) for w in group], axis=0)
    alive = (most > 0) & (weights > 0)
    scales = np.ones(len(most), np.float32)
    scales[alive] = most[alive] ** alpha / weights[alive] ** (1 - alpha)
    scales = np.maximum(scales, LEAST)
    return scales if tie is None else tie(scales)
