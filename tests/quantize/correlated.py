"""Activations as models have them: correlated channels, a few of them much larger."""

import numpy as np

from flyweight.wire import F32


def make_activations(tokens: int, columns: int, seed: int = 0, outliers: int = 4) -> F32:
    """[tokens, columns]; `outliers` channels are 30 times as large."""
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((columns, columns)) / np.sqrt(np.arange(1, columns + 1))[:, None]
    x = rng.standard_normal((tokens, columns)) @ basis * np.exp(rng.normal(0, 0.7, columns))
    x[:, rng.choice(columns, outliers, replace=False)] *= 30
    return x.astype(np.float32)


def make_weights(rows: int, columns: int, seed: int = 1) -> F32:
    """[rows, columns] with heavier tails than the normal distribution's."""
    rng = np.random.default_rng(seed)
    return (rng.standard_t(5, (rows, columns)) * 0.03).astype(np.float32)


def measure_loss(x: F32, w: F32, rounded: F32) -> float:
    """The mean squared error of a matrix's outputs, in float64."""
    lost = x.astype(np.float64) @ (w.astype(np.float64) - rounded).T
    return float(np.square(lost).mean())
