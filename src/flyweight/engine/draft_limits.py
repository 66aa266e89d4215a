"""How many tokens drafts may have: who decides it, and what it is decided by.

Invariant: a decision changes which steps are computed, never their tokens.  Standard library only;
knows no drafter and no scheduler.
"""

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CountedStep(NamedTuple):
    """What a step computed: of `seqs` sequences that decode, `rows` tokens, draft tokens included,
    of which so many were `accepted`; besides, tokens of `prompts`.  There were `times` such steps,
    the last of which was timed.  Since the decision before, `passed` steps ended, this one
    included, and the drafter took `observing` seconds to see them.
    """

    seqs: int
    rows: int
    accepted: int = 0
    prompts: int = 0
    times: int = 1
    passed: int = 1
    observing: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether each of its tokens was the newest of a sequence."""
        return self.rows == self.seqs and not self.prompts


class DraftCandidate(NamedTuple):
    """A sequence about to decode, and the most tokens that its draft may have."""

    id: Hashable
    tokens: Seq[int]
    limit: int


class DraftDepth(NamedTuple):
    """The most tokens of a draft, to be verified, or only to be compared with the text that
    follows.
    """

    tokens: int
    verified: bool


class OfferedDraft(NamedTuple):
    """A draft's tokens and, where it is a tree, their parents."""

    tokens: list[int]
    parents: list[int] | None = None


@dataclass(slots=True)
class DraftTotals:
    """Seconds of steps that only decoded, drafting included, and what they would have taken without
    drafts by the measured costs; `looks` for drafts that were not verified.  All are 0 where
    nothing is measured.
    """

    seconds: float = 0.0
    plain_seconds: float = 0.0
    looks: int = 0

    @property
    def speedup(self) -> float | None:
        return self.plain_seconds / self.seconds if self.seconds else None


class DraftLimits(Protocol):
    """How many tokens drafts may have.  Called by `Drafts` around each step, with the time.  After
    a step nothing is wanted for the next `idle` ones, if they are like it: these are left out.
    While it is `resting` no drafts are wanted, and the drafter need not see steps.
    """

    totals: DraftTotals
    idle: int
    resting: bool

    def wake(self) -> bool:
        """Called while resting, before a step in which a sequence may begin: ends the rest if it
        was long enough, and returns whether it did.
        """
        ...

    @property
    def may_read(self) -> bool:
        """Whether a drafter may take time to read prompts that are half computed."""
        ...

    def begin(self, now: float) -> None:
        """A step begins."""
        ...

    def end(self, shape: CountedStep, ended: float, now: float) -> bool:
        """A step ended, and the drafter has seen it now; whether drafts are wanted for the next."""
        ...

    def choose(self, seqs: Seq[DraftCandidate], batch: int) -> list[DraftDepth]:
        """A depth for each, of `batch` sequences that decode: 0 if all of them end with the next
        step.
        """
        ...

    def take(
        self, seqs: Seq[DraftCandidate], drafts: Seq[OfferedDraft | None], now: float,
        late: float = 0.0,
    ) -> None:  # fmt: skip
        """What was offered to each, None where nothing was requested.  `late` seconds of it were
        for what the drafter had put off, or for prompts: the next draft does not need them again.
        """
        ...

    def measure(self, id: Hashable) -> float | None:
        """How many times as fast steps were with drafts since a sequence began to decode."""
        ...

    def forget(self, id: Hashable) -> None: ...


class FullDrafts:
    """As many tokens as a draft may have, always."""

    def __init__(self) -> None:
        self.totals = DraftTotals()
        self.idle, self.may_read, self.resting = 0, True, False

    def wake(self) -> bool:
        return True

    def begin(self, now: float) -> None: ...
    def end(self, shape: CountedStep, ended: float, now: float) -> bool:
        return True

    def choose(self, seqs: Seq[DraftCandidate], batch: int) -> list[DraftDepth]:
        return [DraftDepth(one.limit, True) for one in seqs]

    def take(
        self, seqs: Seq[DraftCandidate], drafts: Seq[OfferedDraft | None], now: float,
        late: float = 0.0,
    ) -> None: ...  # fmt: skip
    def measure(self, id: Hashable) -> float | None:
        return None

    def forget(self, id: Hashable) -> None: ...
