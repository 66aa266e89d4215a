"""How many tokens a step may have so that it takes about as long as wanted: learned from the steps
before.

Invariant: never fewer than one token for each sequence that runs and `LEAST` more, never more than
the memory plan holds.  What is learned changes when tokens are computed, never what they are.
Standard library only.
"""

LEAST = 16  # prompt tokens of a step that has any: fewer would leave tiles half empty
FIRST = 32  # while nothing is known of the machine
SOONER = 0.3  # weight of the newest step in what is remembered, at most
FEW = 32  # a step of so many prompt tokens counts half: what it costs is mostly the weights' way
STEEPEST = 2.0  # a budget at most doubles from one step to the next


class Pace:
    """`seconds` is what a step should take, `most` the most tokens it may have.

    A step is taken to cost what one without prompts did lately, and a price for each prompt token;
    the price is paid in the same mix of depths and batch-mates, so what the first leaves out of
    account, the second takes in.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.prompt = min(FIRST, most)  # tokens of prompts a step may have now
        self._decode = 0.0
        self._price: float | None = None

    def note(self, prompt: int, seconds: float) -> None:
        """A step with so many prompt tokens took so long."""
        if not prompt:
            self._decode = _mixed(self._decode or seconds, seconds, SOONER)
        elif self._price is not None or prompt >= LEAST:
            price = (seconds - min(self._decode, seconds / 2)) / prompt
            weight = SOONER * prompt / (prompt + FEW)
            self._price = price if self._price is None else _mixed(self._price, price, weight)
        self._set()

    def budget(self, running: int) -> int:
        """Tokens the next step may have with `running` sequences in it."""
        return min(self.most, running + self.prompt)

    def _set(self) -> None:
        if self._price is None:
            return
        room = max(0.0, self.seconds - self._decode) / self._price
        wanted = min(room, self.prompt * STEEPEST, self.most)
        self.prompt = max(LEAST, int(wanted) // LEAST * LEAST)


def _mixed(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)
