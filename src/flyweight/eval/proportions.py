"""Intervals of shares: of one share, and of the difference of two that were counted on the same
samples.

Invariant: intervals are of 95 %, within what a share or a difference can be.  Standard library
only.
"""

from dataclasses import dataclass
from math import sqrt

Z = 1.959963984540054  # of the normal distribution, 97.5 %


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float


def make_wilson(right: int, total: int) -> ShareInterval:
    """Wilson's score interval of `right` in `total`, which also holds for few samples."""
    share, z = right / total, Z * Z
    middle = (share + z / (2 * total)) / (1 + z / total)
    half = Z / (1 + z / total) * sqrt(share * (1 - share) / total + z / (4 * total * total))
    return ShareInterval(share, max(0.0, middle - half), min(1.0, middle + half))


def compare_paired(gained: int, lost: int, total: int) -> ShareInterval:
    """The difference of two shares of the same samples, `gained` of which only the second has and
    `lost` only the first: Bonett and Price's interval, which adds one sample to each of the two.
    """
    up, down = (gained + 1) / (total + 2), (lost + 1) / (total + 2)
    half = Z * sqrt((up + down - (up - down) ** 2) / (total + 2))
    middle = up - down
    return ShareInterval((gained - lost) / total, max(-1.0, middle - half), min(1.0, middle + half))
