"""Seconds of a decode step by its rows, learned from the steps that were computed.

Invariant: what is the same for all steps (the machine's load, longer contexts) moves all figures
together; a figure that was not measured for long counts as unknown, and unknown rows are taken to
be cheap.  Standard library only; knows no sequences.
"""

from bisect import bisect_left
from dataclasses import dataclass

from flyweight.engine.moving_line import average

COMMON = 0.2  # weight of the newest step in what all steps have in common
OWN = 0.1  # the same in the figure of its own number of rows, at least
STRANGEST = 2.0  # a step counts as at most so many times slower, or quicker, than was expected
KEPT = 32  # steps for which a figure is believed, times how often it was measured
LONGEST = 8  # times at most
ALIKE = 1.25  # a second step that is this much quicker replaces the first of its rows
CHEAP = 0.03  # of a step: what another row costs while that is unknown
CHEAP_SHARE = 0.25  # of a row's share of the step, if that is less
AGED = 6  # steps for which a curve is used
WIDE = 8  # extra rows from which on a curve is believed to go on as it does
FINE = 16  # extra rows up to which every number has a figure of its own
GRAIN = 8  # figures for each doubling beyond
NEAR = 4  # a batch that was not measured is compared with those that differ by at most 1 / NEAR


@dataclass(slots=True)
class RowCost:
    """Seconds of a step with so many rows, in units of what all steps have in common; of several
    numbers that share a figure, `rows` is their mean.
    """

    rows: float
    cost: float
    measured: int = 1  # times
    newest: int = 0  # step

    def is_known(self, step: int) -> bool:
        return step - self.newest <= KEPT * min(self.measured, LONGEST)


class DecodeCosts:
    """A curve for each number of sequences."""

    def __init__(self) -> None:
        self.step = 0
        self._common = 0.0  # seconds
        self._curves: dict[int, dict[int, RowCost]] = {}
        self._made: dict[int, tuple[int, CostCurve]] = {}

    def record(self, seqs: int, rows: int, seconds: float, steps: int = 1) -> float:
        """A step of `seqs` sequences and `rows` rows took `seconds`, as `steps` of them
        did; returns that without what is too strange to be the step's own, such as another process
        on its cores.
        """
        self.step += steps
        curve = self._curves.setdefault(seqs, {})
        place = rows if rows - seqs <= FINE else -_round_rows(rows)  # apart from exact numbers
        found = curve.get(place)
        if not self._common:
            self._common = seconds
        if found is None or not found.is_known(self.step):
            if rows > seqs and self.find_plain(seqs) is not None:
                known = self.make_curve(seqs)
                seconds = min(seconds, STRANGEST * (known.cost(rows) + known.doubt(rows)))
            curve[place] = RowCost(rows, seconds / self._common, steps, self.step)
            self._made.pop(seqs, None)
            return seconds
        plain = curve.get(seqs, found)
        each = (found.cost - plain.cost) / max(1.0, found.rows - seqs)
        expected = (found.cost + max(0.0, each) * (rows - found.rows)) * self._common
        ratio = seconds / expected
        if rows > seqs and found.measured == 1 and ratio < 1 / ALIKE:
            # The first step of a width finds its memory and code cold.
            curve[place] = RowCost(rows, seconds / self._common, newest=self.step)
            self._made.pop(seqs, None)
            return seconds
        ratio = min(max(ratio, 1 / STRANGEST), STRANGEST)
        self._common *= average(1.0, ratio, COMMON)
        found.measured += steps
        weight = max(OWN, 1 / found.measured)
        found.cost += max(0.0, each) * weight * (rows - found.rows)
        found.cost *= average(1.0, ratio, weight * (1 - COMMON))
        found.rows = average(found.rows, rows, weight)
        found.newest = self.step
        return ratio * expected

    def find_plain(self, seqs: int) -> float | None:
        """Seconds of a step without drafts; None while that is unknown."""
        found = self._curves.get(seqs, {}).get(seqs)
        if found is None or not found.is_known(self.step):
            return self._guess_plain(seqs)
        return found.cost * self._common

    def _guess_plain(self, seqs: int) -> float | None:
        """Between what batches a little smaller and a little larger take."""
        reach = max(1, seqs // NEAR)
        below = self._find_near(range(seqs - 1, seqs - 1 - reach, -1))
        above = self._find_near(range(seqs + 1, seqs + 1 + reach))
        if below is None or above is None:
            return None
        each = (above.cost - below.cost) / (above.rows - below.rows)
        return (below.cost + each * (seqs - below.rows)) * self._common

    def _find_near(self, batches: range) -> RowCost | None:
        """The first plain cost that is known."""
        for seqs in batches:
            found = self._curves.get(seqs, {}).get(seqs)
            if found is not None and found.is_known(self.step):
                return found
        return None

    def make_curve(self, seqs: int) -> "CostCurve":
        """The costs of steps of `seqs` sequences, whose plain cost is known; a few steps old."""
        step, made = self._made.get(seqs, (-AGED, None))
        if made is not None and self.step - step < AGED:
            return made
        plain = self.find_plain(seqs)
        assert plain is not None, f"{seqs} sequences, and no plain cost"
        knots = [(p.rows, p.cost * self._common) for p in self._list_known(seqs)]
        if not knots or knots[0][0] > seqs:
            knots.insert(0, (float(seqs), plain))
        slope = self._find_slope(seqs, knots)
        steep = max(slope, self._find_steep(seqs, plain))
        cheap = min(CHEAP, CHEAP_SHARE / seqs) * plain
        rows, costs = [rows for rows, _ in knots], [cost for _, cost in knots]
        made = CostCurve(rows, costs, find_sags(rows, costs, cheap), slope, steep)
        self._made[seqs] = self.step, made
        return made

    def _find_slope(self, seqs: int, knots: list[tuple[float, float]]) -> float:
        """Seconds of a row beyond those that are known: as in the curve that goes farthest, of this
        batch or another; cheap where little is known.
        """
        least = min(CHEAP, CHEAP_SHARE / seqs) * knots[0][1]
        last = knots[-1][0]
        widest = max(self._curves, key=lambda n: self._measure_span(n, last))
        beyond = self._list_known(widest) if widest != seqs else []
        if len(beyond) > 1:
            low, high = beyond[0], beyond[-1]
            return max(least, (high.cost - low.cost) * self._common / (high.rows - low.rows))
        if len(knots) == 1:
            return least
        (a, cost_a), (b, cost_b) = knots[-2:]
        slope = max(0.0, (cost_b - cost_a) / (b - a))
        return slope if last - knots[0][0] >= WIDE else max(least, slope)

    def _find_steep(self, seqs: int, plain: float) -> float:
        """The most that a row is taken to cost: what it once did, else a sequence's own share."""
        points = sorted(self._curves.get(seqs, {}).values(), key=lambda p: p.rows)
        if len(points) < 2:
            return plain / seqs
        first, last = points[0], points[-1]
        steep = (last.cost - first.cost) * self._common / (last.rows - first.rows)
        return max(steep, min(CHEAP, CHEAP_SHARE / seqs) * plain)

    def _list_known(self, seqs: int) -> list[RowCost]:
        """Figures that are known, by rows, no two of the same."""
        points = self._curves.get(seqs, {}).values()
        found = {p.rows: p for p in points if p.is_known(self.step)}
        return [found[rows] for rows in sorted(found)]

    def _measure_span(self, seqs: int, rows: float) -> float:
        """How far a curve is known beyond `rows`, of its own drafts."""
        known = self._list_known(seqs)
        return known[-1].rows - max(rows, known[0].rows) if len(known) > 1 else -1


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Lines between knots of (rows, seconds); each may sag so much in its middle, where nothing was
    measured.  Beyond the knots a row costs `slope`, and in the worst case `steep`: as much as a
    sequence's own.
    """

    rows: list[float]
    seconds: list[float]
    sags: list[float]
    slope: float
    steep: float

    def cost(self, rows: float) -> float:
        """Seconds of a step with so many rows, at least as many as the first knot's: what they may
        be, at best.
        """
        at = bisect_left(self.rows, rows)
        if at == 0:
            return self.seconds[0]
        if at == len(self.rows):
            return self.seconds[-1] + self.slope * (rows - self.rows[-1])
        part = (rows - self.rows[at - 1]) / (self.rows[at] - self.rows[at - 1])
        line = self.seconds[at - 1] + part * (self.seconds[at] - self.seconds[at - 1])
        return line - self.sags[at - 1] * (1 - abs(2 * part - 1))

    def doubt(self, rows: float) -> float:
        """How much more that may be, where so many rows were not measured."""
        at = bisect_left(self.rows, rows)
        if at == len(self.rows):
            return (rows - self.rows[-1]) * (self.steep - self.slope)
        if at == 0 or not self.sags[at - 1]:
            return 0.0
        part = (rows - self.rows[at - 1]) / (self.rows[at] - self.rows[at - 1])
        return self.sags[at - 1] * (1 - abs(2 * part - 1))


def find_sags(rows: list[float], seconds: list[float], cheap: float) -> list[float]:
    """By how much the middle between two knots far apart may be below the line, if a row never
    costs less than the ones before it; of those before the first knot, `cheap`.
    """
    found: list[float] = []
    before = cheap
    for i in range(len(rows) - 1):
        width = rows[i + 1] - rows[i]
        each = (seconds[i + 1] - seconds[i]) / width
        sag = 0.0
        if width > WIDE:
            sag = max(0.0, each - max(0.0, before)) * width / 2
            if i + 2 < len(rows):
                after = (seconds[i + 2] - seconds[i + 1]) / (rows[i + 2] - rows[i + 1])
                sag = max(0.0, min(sag, (after - each) * width / 2))
        found.append(sag)
        before = each
    return found


def _round_rows(rows: int) -> int:
    """The figure that a large number of rows belongs to."""
    grain = 1 << max(0, rows.bit_length() - GRAIN.bit_length())
    return rows // grain * grain
