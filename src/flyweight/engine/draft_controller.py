"""Decides for each sequence and step how many draft tokens are worth their time.

Invariant: changes which steps are computed, never their tokens.  What drafts lose, against steps
without, stays below a share of the time: drafts are verified only while the account is positive,
and looking for them again is paid from a second one.  Time comes from a clock that is given.
Knows no drafter and no scheduler.
"""

import time
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from flyweight.engine.acceptance import Acceptance, DraftOutlook, JudgedDraft, Rates
from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftDepth,
    DraftTotals,
    OfferedDraft,
)
from flyweight.engine.moving_line import MovingLine
from flyweight.engine.step_costs import STRANGEST, DecodeCosts

KEPT = 0.9  # of a request's earlier drafts, with every new one
KEPT_OF_ALL = 0.98  # the same for the engine's
MARGIN = 0.03  # by which drafts must be quicker than none to be tried
LOSS = 0.0075  # of the time, that drafts may lose
CREDIT, MOST_CREDIT = 2.0, 6.0  # plain steps that may be lost at the start, and later at once
LOOKS = 0.0075  # of the time, for looking whether drafts would be right
MOST_LOOKS = 4.0  # that may be saved up
LONGEST_WAIT = 1024  # steps until the next look, if one took longer than that pays
REFRESH = 128  # steps after which a plain step is measured again
HELD = 8  # plain steps that are counted at once while nothing is drafted
SLOW = 4  # drafts after which what is found for all is computed again
FINE = 16  # draft tokens of a batch up to which every number is considered
NO_STEP = CountedStep(0, 0, 0, 0)
RECENT = 0.2  # weight of the newest call of the drafter


@dataclass(slots=True)
class DraftedRequest:
    """A sequence's acceptance, and the draft that its next tokens are compared with: it began at
    `start`, and `wanted` tokens were requested.  Totals were `seconds` and `plain_seconds` when it
    began to decode.
    """

    acceptance: Acceptance
    seconds: float
    plain_seconds: float
    start: int = 0
    wanted: int = 0
    offered: OfferedDraft | None = None


@dataclass(slots=True)
class HeldSteps:
    """Plain steps that are not counted yet, all of one shape."""

    shape: CountedStep = NO_STEP
    steps: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class DraftAccounts:
    """Seconds: what drafts may still lose, and what may be spent on looking for them."""

    loss: float = 0.0
    looks: float = 0.0
    opened: bool = False

    def earn(self, gained: float, seconds: float, plain: float) -> None:
        """A step without prompts took so long, and drafts `gained` time in it; one without drafts
        takes `plain`.
        """
        if not self.opened:
            self.loss, self.opened = CREDIT * plain, True
        loss = self.loss + gained + LOSS * seconds
        self.loss = min(max(loss, -CREDIT * plain), MOST_CREDIT * plain)
        self.looks = max(self.looks, -LOOKS * LONGEST_WAIT * plain)

    def earn_looks(self, seconds: float, look: float) -> None:
        """A step took so long, and a look takes `look`."""
        self.looks = min(self.looks + LOOKS * seconds, MOST_LOOKS * look)


class DraftController:
    """Of one engine; drafts have at most `most` tokens."""

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most, self.clock = most, clock
        self.costs, self.totals = DecodeCosts(), DraftTotals()
        self.depths: list[DraftDepth] = []  # of the newest decision
        self._all = Acceptance(most, KEPT_OF_ALL)
        self._requests: dict[Hashable, DraftedRequest] = {}
        self._accounts, self._held = DraftAccounts(), HeldSteps()
        self._drafting = MovingLine(1.0)  # seconds of a call of the drafter by tokens
        self._began = self._ended = 0.0
        self._before: Rates = ()  # of all, a few drafts old
        self._look = 0.0  # seconds of the newest look
        self._width = 1.0  # draft tokens for each step of depth; more than one in trees
        self._verifying = self._waiting = False  # for the cost of a plain step
        self._plain_at = 0  # step that was plain last

    def begin(self) -> None:
        self._began = self.clock()

    def end(self, shape: CountedStep) -> bool:
        self._ended = self.clock()
        seconds = self._ended - self._began
        if self._accounts.looks < 0 and shape == self._held.shape and not self._verifying:
            return self._hold(seconds)
        self._release()
        self._held.shape = CountedStep(shape.seqs, shape.seqs, shape.seqs, shape.seqs)
        self._accounts.earn_looks(seconds, self._look)
        if shape.drawn == shape.rows:  # no tokens of prompts
            self._count(shape, seconds)
        return self._verifying or self._waiting or self._accounts.looks >= 0

    def choose(self, seqs: Seq[DraftCandidate], batch: int) -> list[DraftDepth]:
        if not seqs:  # those to come are taken to be like the last
            self.depths = []
            return []
        for one in seqs:
            self._judge(one)
        verified = self._choose_depths(seqs, batch)
        looked = [one.limit if self._accounts.looks >= 0 else 0 for one in seqs]
        self.depths = [
            DraftDepth(round(depth * self._width), True) if depth else DraftDepth(most, False)
            for depth, most in zip(verified, looked, strict=True)
        ]
        self._verifying = any(verified)
        return self.depths

    def take(self, seqs: Seq[DraftCandidate], drafts: Seq[OfferedDraft | None]) -> None:
        for one, depth, draft in zip(seqs, self.depths, drafts, strict=True):
            request = self._requests[one.id]
            request.start, request.wanted = len(one.tokens), depth.tokens
            request.offered = draft
        seconds = self.clock() - self._ended
        self.totals.seconds += seconds
        most = max((depth.tokens for depth in self.depths), default=0)
        if most:
            self._drafting.record(most, seconds, RECENT)
        if self._verifying:
            call, each = self._drafting.fit(0.0, 1.0)
            self._accounts.loss -= min(seconds, STRANGEST * (call + each * most))
        else:
            self._look = seconds
            self._accounts.looks -= seconds
            self.totals.looks += most > 0

    def skip(self) -> None:
        self.totals.seconds += self.clock() - self._ended

    def measure(self, id: Hashable) -> float | None:
        request = self._requests.get(id)
        if request is None or self.totals.seconds <= request.seconds:
            return None
        seconds = self.totals.seconds - request.seconds
        return (self.totals.plain_seconds - request.plain_seconds) / seconds

    def forget(self, id: Hashable) -> None:
        self._requests.pop(id, None)

    # --- what was measured ---

    def _hold(self, seconds: float) -> bool:
        """Another plain step while nothing is drafted: such steps are counted a few at a time."""
        held = self._held
        held.seconds += seconds
        held.steps += 1
        if held.steps == HELD:
            self._release()
        return self._waiting or self._accounts.looks >= 0

    def _release(self) -> None:
        held = self._held
        if held.steps:
            self._accounts.earn_looks(held.seconds, self._look)
            self._count(held.shape, held.seconds, held.steps)
            held.steps, held.seconds = 0, 0.0

    def _count(self, shape: CountedStep, seconds: float, steps: int = 1) -> None:
        """So many steps of the same shape without tokens of prompts."""
        costs, drafted = self.costs, shape.rows > shape.seqs
        plain = costs.find_plain(shape.seqs) if drafted else seconds / steps
        counted = costs.record(shape.seqs, shape.rows, seconds / steps, steps)
        if plain is None:
            return
        without = plain * shape.produced / shape.seqs if drafted else seconds
        if not drafted:
            self._plain_at = costs.step
        self.totals.seconds += seconds
        self.totals.plain_seconds += without
        self._accounts.earn(without - counted if drafted else 0.0, seconds, plain)

    def _judge(self, one: DraftCandidate) -> None:
        """Compares a draft with the tokens that followed."""
        request = self._requests.get(one.id)
        if request is None:
            now = self.totals
            known = Acceptance(self.most, KEPT)
            self._requests[one.id] = DraftedRequest(known, now.seconds, now.plain_seconds)
            return
        draft = request.offered
        if draft is None:
            return
        request.offered = None
        tried, right = compare_draft(draft, one.tokens[request.start :])
        deepest = count_depth(draft)
        if deepest:
            self._width = len(draft.tokens) / deepest
        judged = JudgedDraft(round(request.wanted / self._width), deepest, tried, right)
        request.acceptance.record(judged)
        self._all.record(judged)

    # --- the decision ---

    def _choose_depths(self, seqs: Seq[DraftCandidate], batch: int) -> list[int]:
        self._waiting = False
        none = [0] * len(seqs)
        if self._accounts.opened and self._accounts.loss <= 0:
            return none
        stale = self._verifying and self.costs.step - self._plain_at >= REFRESH
        self._waiting = stale or self.costs.find_plain(batch) is None
        if self._waiting:
            return none
        if self._all.drafts % SLOW == 0 or not self._before:
            self._before = self._all.list_rates()
        before = self._before
        outlooks = [
            self._requests[one.id].acceptance.look_ahead(before)[: int(one.limit / self._width)]
            for one in seqs
        ]
        return self._find_best(outlooks, batch)

    def _find_best(self, outlooks: Seq[Seq[DraftOutlook]], batch: int) -> list[int]:
        """The depths that give the most tokens a second: of all positions of all drafts, those
        that are most likely right.
        """
        curve = self.costs.make_curve(batch)
        call, each = self._drafting.fit(0.0, 1.0)
        offers = [(one.right, one.reach, i, depth + 1) for i, outlook in enumerate(outlooks)
                  for depth, one in enumerate(outlook)]  # fmt: skip
        offers.sort(key=lambda offer: -offer[0])  # stable: a draft's tokens stay in order
        plain = curve.cost(batch)
        best, kept = batch / plain * (1 + MARGIN), 0
        tokens, rows, deepest = float(batch), float(batch), 0
        for count, (right, reach, _, depth) in enumerate(offers, 1):
            tokens += right * reach
            rows += reach * self._width
            deepest = max(deepest, depth)
            if count > FINE and count % FINE and count < len(offers):
                continue
            seconds = curve.cost(rows) + call + each * deepest
            if seconds + curve.doubt(rows) - plain > self._accounts.loss:
                break  # more than may be lost if nothing is right
            speed = tokens / seconds
            if speed > best:
                best, kept = speed, count
        depths = [0] * len(outlooks)
        for _, _, i, depth in offers[:kept]:
            depths[i] = depth
        return depths


def compare_draft(draft: OfferedDraft, text: Seq[int]) -> tuple[int, int]:
    """How many tokens of the text a draft was compared with, and how many it had foreseen."""
    at, right, size = -1, 0, len(draft.tokens)
    for token in text:
        if draft.parents is None:
            children: Seq[int] = range(at + 1, min(at + 2, size))
        else:
            children = [i for i, parent in enumerate(draft.parents) if parent == at]
        if not children:
            return right, right  # the draft ends
        found = next((i for i in children if draft.tokens[i] == token), None)
        if found is None:
            return right + 1, right
        at, right = found, right + 1
    return right, right


def count_depth(draft: OfferedDraft) -> int:
    """Tokens of the longest path."""
    if draft.parents is None:
        return len(draft.tokens)
    depths: list[int] = []
    for parent in draft.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)
