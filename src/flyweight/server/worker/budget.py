"""Budgets of steps with which a step takes about the target time, learned from earlier steps.

Invariant: at least one token for each running sequence and `LEAST` more, at most what the memory
plan allows.  Budgets change when tokens are computed, never their values.  Draft tokens are
no part of them, and make none smaller.  Standard library only.
"""

from math import inf

from flyweight.engine.moving_line import MovingLine, average
from flyweight.engine.step import Load, StepBudget

GRAIN = 4  # prompt tokens of a step are a multiple of it, so that small changes have no effect
LEAST = 16  # prompt tokens of a step that has any: fewer would leave tiles half empty
FIRST = 32  # prompt tokens of a step while no cost is known
RECENT = 0.3  # weight of the newest step in the moving averages, at most
EARLY = 5  # steps, of which each weighs as much as all before: the first finds memory cold
INDIRECT = 0.1  # weight of a decode cost that is derived from a step with prompts
FEW = 32  # a step of so many prompt tokens counts half: its cost is mostly that of reading weights
ALIKE = 10.0**2  # variance of sizes below which little is learned of the cost per step
STARVED = 4  # prompts are starved with less than that part of the tokens of a prefill-only step
STEEPEST = 2.0  # a budget at most doubles from one step to the next
MASK_SHARE = 1 / 8  # of the step time, for cheap grammar masks; and again for expensive ones


class BudgetController:
    """`seconds` is the target time of a step, `most` the maximum tokens of one.  `max_delay` are
    the seconds that prompts may lose to decodes before steps become prefill-only.

    The cost of a step is modelled as a cost of decodes plus a cost of prompts in addition to it.
    The second is measured at the same depths and batch sizes, so it absorbs the first one's error.
    The cost of decodes is known from steps without prompts, and while there are none, from what a
    step of both took beyond the cost of its prompts.  Prefill-only steps have a cost model of their
    own.
    """

    def __init__(self, seconds: float, most: int, max_delay: float = inf) -> None:
        self.seconds, self.most, self.max_delay = seconds, most, max_delay
        self._mixed, self._prefill = PromptCost(most), PromptCost(most)
        self._decode = 0.0

    def record(self, prompt: int, decodes: int, seconds: float, drafts: int = 0) -> None:
        """A step with `prompt` tokens of prompts, `decodes` sequences that decode and `drafts` of
        their draft tokens took `seconds`.  Besides prompts, a draft token costs as much as one of
        them; without any, decodes alone take at most as long.
        """
        prompt += drafts if prompt else 0
        if not prompt:
            seconds = min(seconds, self._decode or seconds) if drafts else seconds
            self._decode = average(self._decode or seconds, seconds, RECENT)
        elif decodes:
            if self._prefill.measured:
                beyond = max(0.0, seconds - self._prefill.cost(prompt))
                self._decode = average(self._decode, beyond, INDIRECT)
            self._mixed.record(prompt, seconds - min(self._decode, seconds / 2))
            self._prefill.learn(self._mixed)
        else:
            self._prefill.record(prompt, seconds)
            self._mixed.learn(self._prefill)
        self._mixed.fit(self.seconds - self._decode)
        self._prefill.fit(self.seconds)

    @property
    def prefill_tokens(self) -> int:
        """Tokens of a prefill-only step."""
        return self._prefill.tokens

    def estimate_prefill(self, tokens: int) -> float | None:
        """Seconds of so many tokens of a prompt that is computed alone; None while nothing is
        known.  Longer contexts cost more: this is a lower bound.
        """
        whole, rest = divmod(tokens, self._prefill.tokens)
        seconds = whole * self._prefill.cost(self._prefill.tokens)
        return seconds + (self._prefill.cost(rest) if rest else 0.0) or None

    def budget(self, load: Load) -> StepBudget:
        """The budget of the next step."""
        cost = self._mixed if load.decoding else self._prefill
        return StepBudget(
            min(self.most, load.running + cost.tokens),
            self.prefill_tokens if self._is_delayed(load) else 0,
            self.seconds * MASK_SHARE,
        )

    def _is_delayed(self, load: Load) -> bool:
        """Whether waiting prompts would lose more than `max_delay` to decodes.  Prompts that have
        started count only if decodes leave hardly any of a step.
        """
        starved = self._mixed.measured and self._mixed.tokens * STARVED < self._prefill.tokens
        each = self._mixed.price() + self._decode / self._mixed.tokens - self._prefill.price()
        return (load.startable + load.started * starved) * each > self.max_delay


class PromptCost:
    """The prompt tokens that a step of one kind may have, and their cost, per step (such as reading
    the weights) and per token: a line through the newest steps.
    """

    def __init__(self, most: int) -> None:
        self.most, self.tokens = most, min(FIRST, most)
        self._steps = 0  # of this kind, recorded
        self._line = MovingLine(ALIKE)

    def record(self, tokens: int, seconds: float) -> None:
        if self._line.seen is None and tokens < LEAST:
            return  # mostly the cost of reading weights
        self._steps += 1
        weight = max(RECENT * tokens / (tokens + FEW), 0.5 if self._steps < EARLY else 0.0)
        self._line.record(tokens, seconds, weight)

    @property
    def measured(self) -> bool:
        """Whether a step of this kind was recorded."""
        return self._steps > 0

    def learn(self, other: "PromptCost") -> None:
        """Copies the other kind's model until a step of this one is recorded."""
        if not self.measured:
            self._line.seen, self.tokens = other._line.seen, other.tokens

    def cost(self, tokens: int) -> float:
        """Seconds for so many tokens in a step; 0 while nothing is known."""
        step, each = self._fit()
        return step + each * tokens

    def price(self) -> float:
        """Seconds per token in a step of `tokens`; 0 while nothing is known."""
        return self.cost(self.tokens) / self.tokens

    def fit(self, seconds: float) -> None:
        """Sets `tokens` to what can be computed in so much time."""
        if self._line.seen is None:
            return
        step, each = self._fit()
        wanted = min(max(0.0, seconds - step) / each, self.tokens * STEEPEST, self.most)
        self.tokens = max(LEAST, int(wanted) // GRAIN * GRAIN)

    def _fit(self) -> tuple[float, float]:
        """Seconds per step and per token."""
        return self._line.fit(1 / 2, 1.0)
