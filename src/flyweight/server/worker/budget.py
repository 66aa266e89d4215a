"""How many tokens a step may have so that it takes about as long as wanted: learned from the steps
before.

Invariant: never fewer than one token for each sequence that runs and `LEAST` more, never more than
the memory plan holds.  What is learned changes when tokens are computed, never what they are.
Standard library only.
"""

from math import inf

GRAIN = 4  # prompt tokens of a step are a multiple: small changes of the machine are none of it
LEAST = 16  # prompt tokens of a step that has any: fewer would leave tiles half empty
FIRST = 32  # while nothing is known of the machine
SOONER = 0.3  # weight of the newest step in what is remembered, at most
EARLY = 5  # steps, of which each weighs as much as all before: the first finds memory cold
LATER = 0.1  # and where it tells of something only beside something else
FEW = 32  # a step of so many prompt tokens counts half: what it costs is mostly the weights' way
ALIKE = 10.0**2  # a variance of sizes below which little is learned of what a step costs at all
STARVED = 4  # prompts beside decodes have less than that part of what they would have alone
STEEPEST = 2.0  # a budget at most doubles from one step to the next


class Pace:
    """`seconds` is what a step should take, `most` the most tokens it may have.  `patience` are the
    seconds that prompts may lose to those who decode before they are a crowd.

    A step is taken to cost what decodes do, and what prompts cost besides; that is paid in the same
    mix of depths and batch-mates, so what the first leaves out of account, the second takes in.
    What decodes cost is known from steps without prompts, and while there are none, from what a
    step of both took beyond its prompts alone.  Prompts alone have a price of their own.
    """

    def __init__(self, seconds: float, most: int, patience: float = inf) -> None:
        self.seconds, self.most, self.patience = seconds, most, patience
        self._beside, self._alone = Prompts(most), Prompts(most)
        self._decode = 0.0

    def note(self, prompt: int, decodes: int, seconds: float) -> None:
        """A step with so many tokens of prompts, and of answers, took so long."""
        if not prompt:
            self._decode = _mixed(self._decode or seconds, seconds, SOONER)
        elif decodes:
            if self._alone.own:
                beyond = max(0.0, seconds - self._alone.cost(prompt))
                self._decode = _mixed(self._decode, beyond, LATER)
            self._beside.note(prompt, seconds - min(self._decode, seconds / 2))
            self._alone.learn(self._beside)
        else:
            self._alone.note(prompt, seconds)
            self._beside.learn(self._alone)
        self._beside.fit(self.seconds - self._decode)
        self._alone.fit(self.seconds)

    @property
    def alone(self) -> int:
        """Tokens of prompts the next step may have, if there is nothing else in it."""
        return self._alone.tokens

    def budget(self, running: int, *, decoding: bool = True) -> int:
        """Tokens the next step may have with `running` sequences, some of them `decoding`."""
        prompts = self._beside if decoding else self._alone
        return min(self.most, running + prompts.tokens)

    def crowded(self, waiting: int, begun: int) -> bool:
        """Whether so many tokens that wait to begin would, beside decodes, be under way for longer
        than alone by more than there is patience; where decodes leave hardly anything of a step,
        with those of prompts that have begun.
        """
        starved = self._beside.own and self._beside.tokens * STARVED < self._alone.tokens
        lost = self._beside.price() + self._decode / self._beside.tokens - self._alone.price()
        return (waiting + begun * starved) * lost > self.patience


class Prompts:
    """The tokens of prompts that steps of one kind may have, and what they cost: something at all,
    as the weights' way through memory does, and something each, a line through the newest steps.
    """

    def __init__(self, most: int) -> None:
        self.most, self.tokens = most, min(FIRST, most)
        self._steps = 0  # of this kind, that told something
        self._seen: tuple[float, float, float, float] | None = None  # means: t, s, t * t, t * s

    def note(self, tokens: int, seconds: float) -> None:
        if self._seen is None and tokens < LEAST:
            return  # that was the weights' way
        new, weight = (tokens, seconds, tokens**2, tokens * seconds), tokens / (tokens + FEW)
        self._steps += 1
        weight = max(SOONER * weight, 0.5 if self._steps < EARLY else 0.0)
        old = self._seen or new
        t, s, tt, ts = (_mixed(a, b, weight) for a, b in zip(old, new, strict=True))
        self._seen = (t, s, tt, ts)

    @property
    def own(self) -> bool:
        """Whether a step of this kind was seen."""
        return self._steps > 0

    def learn(self, other: "Prompts") -> None:
        """Takes over what the other kind knows, as long as none of this one was seen."""
        if not self.own:
            self._seen, self.tokens = other._seen, other.tokens

    def cost(self, tokens: int) -> float:
        """Seconds for so many in a step; 0 while nothing is known."""
        at_all, each = self._line()
        return at_all + each * tokens

    def price(self) -> float:
        """Seconds for one, in a step of as many as there may be; 0 while nothing is known."""
        return self.cost(self.tokens) / self.tokens

    def fit(self, seconds: float) -> None:
        """As many as so much time has room for."""
        if self._seen is None:
            return
        at_all, each = self._line()
        wanted = min(max(0.0, seconds - at_all) / each, self.tokens * STEEPEST, self.most)
        self.tokens = max(LEAST, int(wanted) // GRAIN * GRAIN)

    def _line(self) -> tuple[float, float]:
        """Seconds at all, and for each token: by least squares, as far as sizes differ."""
        if self._seen is None:
            return 0.0, 0.0
        t, s, tt, ts = self._seen
        whole = s / t
        each = (ts - t * s + ALIKE * whole) / (tt - t * t + ALIKE)
        each = min(max(each, whole / 2), whole)
        return s - each * t, each


def _mixed(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)
