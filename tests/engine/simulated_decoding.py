"""A machine without a model: sequences that decode a text that is given, with drafts that are given
too, on a clock that steps and drafts move forward.

Nothing here is measured: every second is a figure of the test.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flyweight.engine.draft_limits import (
    CountedStep,
    DraftCandidate,
    DraftLimits,
    OfferedDraft,
)

WRONG = -1

Cost = Callable[[int, int], float]  # seconds of a step, by sequences and rows
Foresee = Callable[[int, int, int], int]  # right tokens of a draft, by sequence, place and tokens


def memory_bound(seqs: int, rows: int) -> float:
    """A step of a model on a processor: 30 ms, 2.4 ms for each row beyond the first."""
    return 0.030 + 0.0024 * (rows - 1)


def compute_bound(seqs: int, rows: int) -> float:
    return 0.004 + 0.006 * rows


def wide(seqs: int, rows: int) -> float:
    """A step on a GPU: 64 rows take hardly longer than one."""
    return 0.020 + 0.0001 * min(rows, 64) + 0.0004 * max(0, rows - 64)


def tiny(seqs: int, rows: int) -> float:
    """A step of a model of a few megabytes, of which a call of the drafter is a tenth."""
    return 0.00025 + 0.00002 * rows


@dataclass
class SimulatedDecoding:
    """`batch` is how many sequences decode at each step; each draft has all tokens that are
    requested, and costs `drafting` seconds; the first of a text takes `late` more, of which the
    drafter tells, and `index`, of which it does not.  Steps in turn compute so many tokens of
    `prompts`, too.
    """

    limits: DraftLimits
    foresee: Foresee
    cost: Cost = memory_bound
    drafting: float = 30e-6
    late: float = 0.0
    index: float = 0.0
    observing: float = 0.0  # seconds in which the drafter sees a step
    length: int = 1 << 30  # tokens after which a text ends and another begins
    noise: float = 0.0
    most: int = 10
    prompts: Sequence[int] = (0,)
    now: float = 0.0
    verified: list[int] = field(default_factory=list)  # draft tokens, by step
    drafted: list[list[int]] = field(default_factory=list)  # the depth of each draft, by step
    calls: int = 0  # calls of the drafter
    texts: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(5)
        self.depths: dict[int, int] = {}
        self.begun: set[int] = set()  # texts that were drafted for
        self.unseen: set[int] = set()  # texts of which the drafter did not see all steps
        self.idle = self.passed = self.seqs = 0
        self.ended = 0  # tokens of texts that ended
        self.seen = 0  # steps that the drafter saw
        self.since, self.taken = (
            0,
            0.0,
        )  # steps since the limits were given one; seconds to see them

    def run(self, batches: Sequence[int]) -> float:
        """Steps, each with so many sequences; returns the tokens a second."""
        began, before = self.now, self.count_tokens()
        for batch in batches:
            self.step(batch)
        return (self.count_tokens() - before) / (self.now - began)

    def count_tokens(self) -> int:
        return self.ended + sum(map(len, self.texts.values()))

    def step(self, batch: int) -> None:
        limits = self.limits
        if limits.resting and any(i not in self.texts for i in range(batch)) and limits.wake():
            self.unseen |= set(self.texts)
            self.idle = self.passed = 0
        if not self.idle:
            limits.begin(self.now)
        rows = accepted = 0
        self.drafted.append([self.depths.get(i, 0) for i in range(batch)])
        for i in range(batch):
            text = self.texts.setdefault(i, [])
            depth = self.depths.pop(i, 0)
            right = min(depth, self.foresee(i, len(text), depth)) if depth else 0
            rows, accepted = rows + 1 + depth, accepted + right
            text.extend(range(len(text), len(text) + 1 + right))
        prompts = self.prompts[len(self.verified) % len(self.prompts)]
        self.verified.append(rows - batch)
        spread = 1 + self.rng.uniform(-self.noise, self.noise)
        self.now += self.cost(batch, rows + prompts) * spread
        for i in [i for i, text in self.texts.items() if i >= batch or len(text) >= self.length]:
            self.limits.forget(i)
            self.ended += len(self.texts.pop(i))
            self.depths.pop(i, None)
            self.begun.discard(i)
            self.unseen.discard(i)
        self.end(CountedStep(batch, rows, accepted, prompts))

    def end(self, shape: CountedStep) -> None:
        """As `Drafts` does: steps that nothing is wanted for are not looked at."""
        ended, resting = self.now, self.limits.resting
        if not resting:
            self.now += self.observing
            self.taken += self.observing
            self.seen += 1
        if self.idle:
            same = shape.plain and shape.rows == self.seqs
            self.since += 1
            self.idle, self.passed = (self.idle - 1, self.passed + 1) if same else (0, 0)
            return
        same = shape.rows == self.seqs and not shape.prompts
        times, self.passed = 1 + self.passed * same, 0
        counted = shape._replace(times=times, passed=1 + self.since, observing=self.taken)
        self.since, self.taken = 0, 0.0
        if self.limits.end(counted, ended, self.now):
            self.draft(shape.seqs)
        self.idle, self.seqs = self.limits.idle, shape.seqs

    def draft(self, batch: int) -> None:
        left = {i: self.length - len(self.texts[i]) for i in range(batch) if i in self.texts}
        known = [i for i in left if left[i] > 1 and i not in self.unseen]
        seqs = [DraftCandidate(i, self.texts[i], min(self.most, left[i] - 1)) for i in known]
        depths = self.limits.choose(seqs, batch if any(n > 1 for n in left.values()) else 0)
        drafts: list[OfferedDraft | None] = [None] * len(seqs)
        for place, (i, depth) in enumerate(zip(known, depths, strict=True)):
            if depth.tokens:
                at = len(self.texts[i])
                right = self.foresee(i, at, depth.tokens)
                tokens = [at + j if j < right else WRONG for j in range(depth.tokens)]
                drafts[place] = OfferedDraft(tokens)
                self.depths[i] = depth.tokens if depth.verified else 0
        late = 0.0
        if any(draft is not None for draft in drafts):
            self.calls += 1
            new = {i for i, draft in zip(known, drafts, strict=True) if draft} - self.begun
            self.begun |= new
            late = self.late * len(new)
            self.now += self.drafting + late + self.index * len(new)
        self.limits.take(seqs, drafts, self.now, late)
