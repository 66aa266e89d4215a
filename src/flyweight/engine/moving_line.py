"""A line through the newest points of a noisy relation, such as seconds by tokens of a step.

Invariant: the slope stays between two shares of the mean price; so it is never negative, however
few points there are.  Standard library only; knows no units.
"""


class MovingLine:
    """Weighted means of x, y, x * x and x * y; `alike` is the variance of x below which little is
    learned of the slope.
    """

    def __init__(self, alike: float) -> None:
        self.alike = alike
        self.seen: tuple[float, float, float, float] | None = None

    def record(self, x: float, y: float, weight: float) -> None:
        """A new point, which weighs that share of all."""
        new = (x, y, x**2, x * y)
        old = self.seen or new
        t, s, tt, ts = (average(a, b, weight) for a, b in zip(old, new, strict=True))
        self.seen = (t, s, tt, ts)

    def fit(self, least: float, most: float) -> tuple[float, float]:
        """Its value at 0 and its slope, by least squares if points differ enough; the slope within
        these shares of y / x.
        """
        if self.seen is None:
            return 0.0, 0.0
        t, s, tt, ts = self.seen
        whole = s / t
        each = (ts - t * s + self.alike * whole) / (tt - t * t + self.alike)
        each = min(max(each, whole * least), whole * most)
        return s - each * t, each


def average(old: float, new: float, weight: float) -> float:
    """A moving average, moved towards a new value."""
    return old + weight * (new - old)
