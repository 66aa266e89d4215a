"""The perplexity of a text, with its standard error.

Invariant: perplexity is exp of the mean negative log-likelihood of all scored tokens, each of the
same weight.  The error is that of the mean over windows, whose tokens depend on each other.  Knows
no files.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyweight.wire import F64


@dataclass(frozen=True, slots=True)
class MeanWithError:
    """A mean over tokens; `error` is its standard error by windows, None for a single window."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, windows: Sequence[F64]) -> "MeanWithError":
        """Of values by token, window by window, which may differ in length (a ratio estimate)."""
        counts = np.array([len(values) for values in windows], np.float64)
        sums = np.array([values.sum() for values in windows])
        many, total = len(windows), counts.sum()
        mean = sums.sum() / total
        if many < 2:
            return cls(float(mean), None)
        spread = np.square(sums - mean * counts).sum() * many / (many - 1)
        return cls(float(mean), float(np.sqrt(spread) / total))


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of a text: the mean negative log-likelihood (`nll`), `tokens` scored in `windows`."""

    nll: MeanWithError
    tokens: int
    windows: int

    @classmethod
    def of(cls, logprobs: Sequence[F64]) -> "Perplexity":
        nll = MeanWithError.of([-values for values in logprobs])
        return cls(nll, sum(map(len, logprobs)), len(logprobs))

    @property
    def value(self) -> float:
        return math.exp(self.nll.mean) if self.nll.mean < 700 else math.inf

    @property
    def error(self) -> float | None:
        """The standard error of `value`, to first order."""
        return None if self.nll.error is None else self.value * self.nll.error
