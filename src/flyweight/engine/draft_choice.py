"""The depths of drafts that give the most tokens a second.

Invariant: a depth is chosen only if the step may lose what it costs when all drafts are wrong.
Standard library only; measures nothing.
"""

from collections.abc import Sequence as Seq
from typing import NamedTuple

from flyweight.engine.acceptance import DraftOutlook
from flyweight.engine.step_costs import CostCurve

MARGIN = 0.03  # by which drafts must be quicker than none to be tried
BOLD = 0.5  # plain steps that rows which were never measured may cost more than is likely
GRAIN = 2  # numbers of draft tokens that are considered, for each token of a draft


class StepPrices(NamedTuple):
    """A step of `batch` sequences costs `curve` by rows, and drafts of so many tokens `call` +
    tokens × `each` seconds.
    """

    batch: int
    curve: CostCurve
    call: float
    each: float

    @property
    def plain(self) -> float:
        return self.curve.cost(self.batch)

    def quote(self, rows: float, deepest: int) -> tuple[float, float]:
        """Seconds of a step with drafts, and how many more it may take."""
        drafting = self.call + self.each * deepest
        return self.curve.cost(rows) + drafting, self.curve.doubt(rows)

    def risk(self, rows: float, deepest: int) -> float:
        """Seconds that are lost if all drafts are wrong."""
        return sum(self.quote(rows, deepest)) - self.plain


class ChosenDepths(NamedTuple):
    """A depth for each draft, and the seconds that are lost if all are wrong."""

    depths: list[int]
    risk: float


def choose_depths(
    outlooks: Seq[Seq[DraftOutlook]], prices: StepPrices, width: float, allowed: float
) -> ChosenDepths:
    """Of all positions of all drafts, those that are most likely right; `width` tokens each, and
    `allowed` seconds may be lost.
    """
    batch, plain = prices.batch, prices.plain
    offers = list_offers(outlooks)
    best, kept, lost = batch / plain * (1 + MARGIN), 0, 0.0
    tokens, rows, deepest = float(batch), float(batch), 0
    grain = max(1, len(outlooks) // GRAIN)
    for count, (right, reach, _, depth) in enumerate(offers, 1):
        tokens += right * reach
        rows += reach * width
        deepest = max(deepest, depth)
        if count % grain and count < len(offers):
            continue
        seconds, doubt = prices.quote(rows, deepest)
        risk = seconds + doubt - plain
        if risk > allowed or (kept and doubt > BOLD * plain):
            break
        if tokens / seconds > best:
            best, kept, lost = tokens / seconds, count, risk
    depths = [0] * len(outlooks)
    for _, _, i, depth in offers[:kept]:
        depths[i] = depth
    return ChosenDepths(depths, lost)


def list_offers(outlooks: Seq[Seq[DraftOutlook]]) -> list[tuple[float, float, int, int]]:
    """All positions, the likeliest first: how likely its token is right, and that there is one;
    whose draft, and how deep.
    """
    offers: list[tuple[float, float, int, int]] = []
    for i, outlook in enumerate(outlooks):
        for depth, one in enumerate(outlook, 1):
            offers.append((one.right, one.reach, i, depth))
    if len(outlooks) > 1:
        offers.sort(key=lambda offer: -offer[0])  # stable: a draft's tokens stay in order
    return offers
