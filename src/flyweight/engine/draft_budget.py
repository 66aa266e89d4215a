"""What drafts may cost while they do not pay: four accounts, in seconds.

Invariant: each receives a share of the time, so what is lost stays below the sum of the shares,
whatever the text does.  Standard library only; measures nothing.
"""

from dataclasses import dataclass

LOSS = 0.006  # of the time, that drafts may lose
CREDIT, MOST_CREDIT = 2.0, 6.0  # plain steps that may be lost at the start, and later at once
LOOKS = 0.006  # of the time, for looking whether drafts would be right
FIRST_LOOKS = 1.0  # plain steps that looks may take at the start
MOST_LOOKS = 4.0  # that may be saved up
LONGEST_WAIT = 256  # steps until the next look, if one took longer than that pays
RAREST = 2  # looks in vain, each of which halves the share of the next
READING = 0.003  # of the time, for reading texts that are looked at for the first time
FIRST_READING, MOST_READING = 2.0, 4.0  # plain steps that it may take at the start, and later
LET_OFF = 1024  # steps in which about two thirds of what is overdrawn are let off, if that is more
OBSERVING = 0.004  # of the time, for a drafter that sees steps while no draft is verified
FIRST_OBSERVING, MOST_OBSERVING = 6.0, 8.0  # plain steps that it may take at the start, and later
POSTPONED = 16  # steps until the next look, where no text may be looked at


@dataclass(slots=True)
class DraftBudget:
    """`loss`: what verified drafts may still lose; `looks`: what may be spent on looking for drafts
    that would be right, `reading` on what a drafter has put off until the first look at a text,
    `observing` on steps that it sees.
    `vain` counts looks in succession that found none.
    """

    loss: float = 0.0
    looks: float = 0.0
    reading: float = 0.0
    observing: float = 0.0
    full: bool = False  # since the last rest began, `observing` was as large as it gets
    broke: bool = False  # `observing` is as small as it gets
    vain: int = 0
    opened: bool = False

    @property
    def spent(self) -> bool:
        """Whether no draft may be verified."""
        return self.opened and self.loss <= 0

    @property
    def overdrawn(self) -> bool:
        """Whether the drafter may see no more steps."""
        return self.opened and self.observing < 0

    @property
    def share(self) -> float:
        """Of the time, for looks."""
        return LOOKS / self._rarity

    @property
    def _rarity(self) -> int:
        return 1 << min(self.vain, RAREST)

    def earn(self, gained: float, seconds: float, plain: float) -> None:
        """Steps took so long, and drafts `gained` time in them; one without drafts and prompts
        takes `plain`.  What is gained beyond the most credit pays for reading.
        """
        if not self.opened:
            self.loss, self.opened = CREDIT * plain, True
            self.looks += FIRST_LOOKS * plain
            self.reading += FIRST_READING * plain
            self.observing += FIRST_OBSERVING * plain
        loss = self.loss + gained + LOSS * seconds
        self.loss = min(max(loss, -CREDIT * plain), MOST_CREDIT * plain)
        self.looks = max(self.looks, -LOOKS * LONGEST_WAIT * plain)
        share = max(READING, -self.reading / (LET_OFF * plain)) / self._rarity
        beyond = max(0.0, min(gained, loss - MOST_CREDIT * plain))
        self.reading = min(self.reading + share * seconds + beyond, MOST_READING * plain)
        self.full = self.full or self.observing >= MOST_OBSERVING * plain
        self.broke = self.observing <= -plain
        self.observing = max(-plain, min(self.observing, MOST_OBSERVING * plain))

    def charge_observing(self, seconds: float, taken: float) -> None:
        """Steps took so long, and seeing them took `taken` seconds."""
        self.observing += OBSERVING * seconds - taken

    def earn_looks(self, seconds: float, look: float) -> None:
        """Steps took so long, and a look takes `look`."""
        self.looks = min(self.looks + self.share * seconds, MOST_LOOKS * look)

    def count_wait(self, seconds: float) -> int:
        """Steps of so many seconds until the next look."""
        return int(-self.looks / (self.share * seconds)) if self.looks < 0 and seconds > 0 else 0

    def postpone(self, plain: float) -> None:
        """No look for some steps, of which a plain one takes `plain`."""
        self.looks = min(self.looks, -POSTPONED * self.share * plain)
