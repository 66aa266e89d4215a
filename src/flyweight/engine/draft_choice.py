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
LEAST_RIGHT = 0.02  # tokens that are less likely are not considered


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

    def risk(self, rows: float, deepest: int) -> float:
        """Seconds that are lost if all drafts are wrong."""
        curve = self.curve
        drafting = self.call + self.each * deepest
        return curve.cost(rows) + curve.doubt(rows) + drafting - self.plain


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
    batch, curve = prices.batch, prices.curve
    offers = list_offers(outlooks)
    best, kept, lost = batch / prices.plain * (1 + MARGIN), 0, 0.0
    tokens, rows, deepest = float(batch), float(batch), 0
    grain = max(1, len(outlooks) // GRAIN)
    for count, (right, reach, _, depth) in enumerate(offers, 1):
        tokens += right * reach
        rows += reach * width
        deepest = max(deepest, depth)
        if count % grain and count < len(offers):
            continue
        risk = prices.risk(rows, deepest)
        if risk > allowed or (kept and curve.doubt(rows) > BOLD * prices.plain):
            break
        speed = tokens / (curve.cost(rows) + prices.call + prices.each * deepest)
        if speed > best:
            best, kept, lost = speed, count, risk
    depths = [0] * len(outlooks)
    for _, _, i, depth in offers[:kept]:
        depths[i] = depth
    return ChosenDepths(depths, lost)


def list_offers(outlooks: Seq[Seq[DraftOutlook]]) -> list[tuple[float, float, int, int]]:
    """Positions worth considering, the likeliest first: how likely its token is right, and that
    there is one; whose draft, and how deep.
    """
    offers: list[tuple[float, float, int, int]] = []
    for i, outlook in enumerate(outlooks):
        for depth, one in enumerate(outlook, 1):
            if one.right < LEAST_RIGHT:
                break
            offers.append((one.right, one.reach, i, depth))
    if len(outlooks) > 1:
        offers.sort(key=lambda offer: -offer[0])  # stable: a draft's tokens stay in order
    return offers
