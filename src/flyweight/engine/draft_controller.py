"""Decides for each sequence and step how many draft tokens are worth their time.

Invariant: changes which steps are computed, never their tokens.  What drafts lose, against steps
without, stays below a share of the time (`DraftBudget`).  Time is given.  Knows no drafter and no
scheduler.
"""

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from flyweight.engine.acceptance import JudgedDraft
from flyweight.engine.draft_budget import DraftBudget
from flyweight.engine.draft_choice import StepPrices, choose_depths
from flyweight.engine.draft_evidence import DraftEvidence
from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftDepth,
    DraftTotals,
    OfferedDraft,
)
from flyweight.engine.moving_line import MovingLine, average
from flyweight.engine.step_costs import STRANGEST, DecodeCosts

REFRESH = 128  # steps after which a plain step is measured again
IDLE = 63  # plain steps in succession that are not timed, at most
RECENT = 0.2  # weight of the newest call of the drafter
SETTLED, STOPPED = 4, 16  # drafts for which depths are kept, and for which none is
SELDOM = 8  # steps with drafts after which the sequences without are looked at
PROBE = 2  # draft tokens that are verified to learn whether more would pay


@dataclass(slots=True)
class KeptDepths:
    """Depths by sequence, for a batch of so many; chosen `age` drafts ago.  They lose `risk`
    seconds if all drafts are wrong.  `paid`: there are some, or would be if no text ended soon.
    """

    depths: dict[Hashable, int] = field(default_factory=dict)
    batch: int = 0
    risk: float = 0.0
    paid: bool = False
    age: int = 0

    def hold(self, seqs: Seq[DraftCandidate], batch: int, news: Seq[JudgedDraft | None]) -> bool:
        """Whether they are still good: the same sequences, and nothing that surprises."""
        if batch != self.batch or any(one.id not in self.depths for one in seqs):
            return False
        judged = [one for one in news if one is not None]
        if any(self.depths.values()):
            wrong = sum(one.tried > one.right == 0 for one in judged)
            return self.age < SETTLED and 2 * wrong <= len(judged)
        return self.age < STOPPED and not any(one.right for one in judged)


NO_DEPTHS = KeptDepths()


class DraftController:
    """Of one engine; drafts have at most `most` tokens.  With `probes`, short drafts are verified
    to learn whether they are right, since acceptance is more than equality with the text.  If it
    `rests`, the drafter sees no steps for a while where seeing them costs more than it may.
    """

    def __init__(self, most: int, probes: bool = False, rests: bool = False) -> None:
        self.probes, self.rests, self.idle, self.resting = probes, rests, 0, False
        self.costs, self.totals = DecodeCosts(), DraftTotals()
        self.depths: list[DraftDepth] = []  # of the newest decision
        self.budget, self._evidence = DraftBudget(), DraftEvidence(most)
        self._kept = KeptDepths()
        self._drafting = MovingLine(1.0)  # seconds of a call of the drafter by tokens
        self._began = self._observed = 0.0
        self._look = 0.0  # seconds of the newest look
        self._seeing = 0.0  # seconds in which the drafter sees a step
        self._verifying = False
        self._due = False  # drafts are decided on after the next step, whatever looks may cost
        self._settled_at = 0  # step at which the newest look can be judged; 0: there is none
        self._plain_at = 0  # step that was plain last

    def begin(self, now: float) -> None:
        self._began = now

    def end(self, shape: CountedStep, ended: float, now: float) -> bool:
        seconds, self._observed = ended - self._began, now
        self.totals.seconds += (now - ended) * shape.times
        self.budget.earn_looks(seconds * shape.times, self._look)
        self._charge_observing(shape, seconds)
        (self._count_mixed if shape.prompts else self._count)(shape, seconds)
        if 0 < self._settled_at <= self.costs.step:
            self._settle()
        wanted = self._verifying or self._due
        pending = (self._due or self._settled_at) and not self.budget.broke
        if self.rests and self.budget.overdrawn and not (self._verifying or pending):
            self.resting, self.budget.full = True, False
        wanted = not self.resting and (wanted or self.budget.looks >= 0)
        wait = IDLE if self.resting else self.budget.count_wait(seconds)
        self.idle = 0 if wanted or not shape.plain else min(IDLE, wait)
        if self._settled_at:
            self.idle = min(self.idle, max(0, self._settled_at - self.costs.step - 1))
        return wanted

    def wake(self) -> bool:
        self.resting = not self.budget.full
        return not self.resting

    @property
    def may_read(self) -> bool:
        return self.budget.reading >= 0

    def choose(self, seqs: Seq[DraftCandidate], batch: int) -> list[DraftDepth]:
        if not seqs:  # those to come are taken to be like the last
            self.depths = []
            if batch:  # sequences that get no drafts
                self._verifying = self._due = False
                self.budget.postpone(self.costs.find_plain(batch) or 0.0)
            return []
        news = [self._evidence.judge(one, self.totals) for one in seqs]
        if not self._verifying:
            self._note_look(news)
        kept, width = self._decide(seqs, batch, news), self._evidence.width
        self._verifying = kept.paid
        verified = [
            min(kept.depths.get(one.id, 0), int(one.limit / width)) if self._may_draft(one) else 0
            for one in seqs
        ]
        self._kept.age += 1
        looking = self.budget.looks >= 0
        if self._verifying:
            looking = looking and self.costs.step % SELDOM == 0
        looked_at = self._list_looked_at(seqs, batch) if looking else set()
        if looked_at and self.probes:
            probed = [one for one in seqs if one.id in looked_at]
            found = self._choose_probes(probed, batch, sum(verified))
            probes = {one.id: probe for one, probe in zip(probed, found, strict=True)}
            verified = [
                depth or probes.get(one.id, 0) for depth, one in zip(verified, seqs, strict=True)
            ]
            looked_at = set()
        self.depths = [
            DraftDepth(round(depth * width), True) if depth
            else DraftDepth(one.limit if one.id in looked_at else 0, False)
            for depth, one in zip(verified, seqs, strict=True)
        ]  # fmt: skip
        return self.depths

    def _may_draft(self, one: DraftCandidate) -> bool:
        """Whether the drafter has read a text, or may take the time for that."""
        return self.budget.reading >= 0 or self._evidence.requests[one.id].read

    def _list_looked_at(self, seqs: Seq[DraftCandidate], batch: int) -> set[Hashable]:
        """Those whose drafts may be compared."""
        found = {one.id for one in seqs if self._may_draft(one)}
        if not found:
            self.budget.postpone(self.costs.find_plain(batch) or 0.0)
        return found

    def take(
        self, seqs: Seq[DraftCandidate], drafts: Seq[OfferedDraft | None], now: float,
        late: float = 0.0,
    ) -> None:  # fmt: skip
        requests = self._evidence.requests
        first = any(
            draft is not None and not requests[one.id].read
            for one, draft in zip(seqs, drafts, strict=True)
        )
        for one, depth, draft in zip(seqs, self.depths, drafts, strict=True):
            self._evidence.keep(one, depth.tokens, draft)
        seconds = now - self._observed - late
        self.totals.seconds += seconds + late
        most = max((depth.tokens for depth in self.depths), default=0)
        call, each = self._drafting.fit(0.0, 1.0)
        expected = call + each * most
        if first:
            usual = min(seconds, expected)  # the rest is reading, such as an index of the text
        else:
            usual = min(seconds, STRANGEST * expected) if expected else seconds
            if most:
                self._drafting.record(most, usual, RECENT)
        beyond = seconds - usual if first else 0.0
        self.budget.reading -= late + beyond
        if self._verifying:
            self.budget.loss -= usual
        else:
            self._look = seconds - beyond
            self.budget.looks -= self._look
            self.totals.looks += most > 0
            longest = max((len(draft.tokens) for draft in drafts if draft is not None), default=0)
            self._settled_at = self.costs.step + longest if longest else 0

    def measure(self, id: Hashable) -> float | None:
        request = self._evidence.requests.get(id)
        if request is None or self.totals.seconds <= request.seconds:
            return None
        seconds = self.totals.seconds - request.seconds
        return (self.totals.plain_seconds - request.plain_seconds) / seconds

    def forget(self, id: Hashable) -> None:
        self._evidence.forget(id)

    # --- what was measured ---

    def _charge_observing(self, shape: CountedStep, seconds: float) -> None:
        """What the drafter took to see steps."""
        self._seeing = average(self._seeing, shape.observing / shape.passed, RECENT)
        taken = 0.0 if self._verifying else shape.observing
        self.budget.loss -= shape.observing - taken
        self.budget.charge_observing(seconds * shape.passed, taken)

    def _count(self, shape: CountedStep, seconds: float) -> None:
        """Steps without tokens of prompts."""
        costs, drafted = self.costs, shape.rows > shape.seqs
        plain = costs.find_plain(shape.seqs) if drafted else seconds
        counted = costs.record(shape.seqs, shape.rows, seconds, shape.times)
        if plain is None:
            return
        whole = seconds * shape.times
        without = plain * (1 + shape.accepted / shape.seqs) if drafted else whole
        if not drafted:
            self._plain_at = costs.step
        self.totals.seconds += whole
        self.totals.plain_seconds += without
        self.budget.earn(without - counted if drafted else 0.0, whole, plain)

    def _count_mixed(self, shape: CountedStep, seconds: float) -> None:
        """A step with tokens of prompts.  It took longer than a plain one for these and for drafts:
        a draft token costs as much as one of a prompt, and no less than where there is none.
        """
        plain = self.costs.find_plain(shape.seqs) if shape.seqs else None
        if plain is None:
            return
        drafts, gained = shape.rows - shape.seqs, 0.0
        if drafts:
            share = (seconds - plain) * drafts / (drafts + shape.prompts)
            alone = self.costs.make_curve(shape.seqs).cost(shape.rows) - plain
            gained = plain * shape.accepted / shape.seqs - max(share, alone)
        self.budget.earn(gained, seconds, plain)

    def _settle(self) -> None:
        """Judges the newest look, as soon as the text is as long as its drafts."""
        self._settled_at = 0
        if self._verifying:
            return
        news = self._evidence.settle()
        self._note_look(news)
        if any(one.right for one in news):
            self._due, self._kept.batch = True, 0

    def _note_look(self, news: Seq[JudgedDraft | None]) -> None:
        """Looks in vain make the next ones rarer."""
        judged = [one.right for one in news if one is not None]
        if judged:
            self.budget.vain = 0 if any(judged) else self.budget.vain + 1

    # --- the decision ---

    def _decide(
        self, seqs: Seq[DraftCandidate], batch: int, news: Seq[JudgedDraft | None]
    ) -> KeptDepths:
        """A depth for each; none while the cost of a plain step is not known, or drafts have lost
        too much.
        """
        wanted, self._due = self._verifying or self._due, False
        if self.budget.spent or not self._evidence.hopeful:
            self._kept.batch = 0
            return NO_DEPTHS
        stale = self._verifying and self.costs.step - self._plain_at >= REFRESH
        if stale or self.costs.find_plain(batch) is None:
            self._due, self._kept.batch = wanted, 0
            return NO_DEPTHS
        if not (self._kept.risk <= self.budget.loss and self._kept.hold(seqs, batch, news)):
            self._kept = self._choose_depths(seqs, batch, wanted)
        return self._kept

    def _choose_depths(self, seqs: Seq[DraftCandidate], batch: int, wanted: bool) -> KeptDepths:
        """What pays most now.  Where drafts were `wanted` and none fits into what is left of the
        texts, it is for those to come that this is judged.
        """
        evidence, prices = self._evidence, self._read_prices(batch)
        ahead = [evidence.look_ahead(one) for one in seqs]
        near = [
            outlook[: int(one.limit / evidence.width)]
            for one, outlook in zip(seqs, ahead, strict=True)
        ]
        found, risk = choose_depths(near, prices, evidence.width, self.budget.loss)
        paid = any(found)
        if wanted and not paid and near != ahead:
            paid = any(choose_depths(ahead, prices, evidence.width, self.budget.loss).depths)
        depths = {one.id: depth for one, depth in zip(seqs, found, strict=True)}
        return KeptDepths(depths, batch, risk, paid)

    def _choose_probes(self, seqs: Seq[DraftCandidate], batch: int, tokens: int) -> list[int]:
        """Short drafts for as many sequences as may be lost, where drafts have `tokens` already;
        none while that is unknown.
        """
        count = 0 if self.budget.spent or self.costs.find_plain(batch) is None else len(seqs)
        while count:
            rows = batch + (tokens + PROBE * count) * self._evidence.width
            if self._read_prices(batch).risk(rows, PROBE) <= self.budget.loss:
                break
            count //= 2
        return [min(PROBE, one.limit) if i < count else 0 for i, one in enumerate(seqs)]

    def _read_prices(self, batch: int) -> StepPrices:
        call, each = self._drafting.fit(0.0, 1.0)
        return StepPrices(batch, self.costs.make_curve(batch), call + self._seeing, each)
