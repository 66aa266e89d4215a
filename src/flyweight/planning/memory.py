"""The exact memory of a model in use, on a device: what is needed, the longest context that fits,
and the nearest settings that do.

Invariant: the figures are those of `plan/memory.py`, of every process of a server; nothing is
loaded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from flyweight.config import Settings
from flyweight.draft.latetokens import SLOT_BYTES
from flyweight.errors import ConfigError
from flyweight.model_memory import make_memory_plan
from flyweight.plan.machine import Machine
from flyweight.plan.memory import SLACK, MemoryPlan, Needs, Packer
from flyweight.planning.outline import KINDS_BY_BITS, ModelOutline, assume_bits
from flyweight.planning.quantities import check_range

LEAST_CONTEXT, MOST_CONTEXT = 16, 1 << 24
MOST_SEQUENCES = 4096
MOST_SLOTS = 2**31 - 1  # token positions of all sequences
SMALLER_KV = ("int8", "int4")
UNLIMITED = 1 << 60
SUGGESTED = 3


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """`sequences` of `context` tokens at once; K/V of a type, matrices of `bits` (None: as the
    files have them), steps of at most `step_tokens` tokens.
    """

    context: int
    sequences: int = 1
    kv_dtype: str = "auto"
    bits: float | None = None
    step_tokens: int = 512

    def list_options(self) -> dict[str, Any]:
        """The settings of an engine for this use."""
        blocks = self.sequences * -(-self.context // Settings().block_size) + 1
        return {
            "max_model_len": self.context,
            "max_num_seqs": self.sequences,
            "max_num_batched_tokens": max(self.step_tokens, self.sequences),
            "kv_cache_dtype": self.kv_dtype,
            "memory_limit": "100%",
            "blocks": blocks,
        }

    def check(self) -> None:
        """Raises `ConfigError`."""
        check_range(self.context, "context", LEAST_CONTEXT, MOST_CONTEXT)
        check_range(self.sequences, "sequences", 1, MOST_SEQUENCES)
        if self.context * self.sequences > MOST_SLOTS // 2:
            raise ConfigError(
                f"of {self.context} tokens are more than {MOST_SLOTS // 2} tokens",
                "sequences",
                value=self.sequences,
                hint=f"nearest valid: {MOST_SLOTS // 2 // self.context}",
            )
        if self.bits is not None and self.bits not in KINDS_BY_BITS:
            near = min(KINDS_BY_BITS, key=lambda known: abs(known - (self.bits or 0)))
            raise ConfigError(
                "is not a number of bits that matrices are kept in",
                "bits",
                value=self.bits,
                allowed=", ".join(map(str, KINDS_BY_BITS)),
                hint=f"nearest valid: {near}",
            )


@dataclass
class MemoryPlanner:
    """Plans uses of one model, on as many `cores`.  What a model needs is worked out once for each
    number of bits, a use once; `held` bytes are what the process holds already.  A `draft` model
    is counted too, its matrices as they are.
    """

    outline: ModelOutline
    ops: Packer
    cores: int
    held: int
    draft: ModelOutline | None = None
    _needs: dict[float | None, Needs] = field(default_factory=dict)
    _needed: dict[PlannedUse, int] = field(default_factory=dict)

    def get_needs(self, bits: float | None) -> Needs:
        if bits not in self._needs:
            kinds = self.outline.kinds if bits is None else assume_bits(self.outline, bits)
            needs = Needs.of(self.outline.spec, kinds, self.ops)
            if self.draft is not None:
                second = Needs.of(self.draft.spec, self.draft.kinds, self.ops)
                needs = replace(needs, draft=replace(second, slot=SLOT_BYTES))
            self._needs[bits] = needs
        return self._needs[bits]

    def plan(self, use: PlannedUse) -> MemoryPlan:
        """With K/V for every sequence at its full length, on a machine without a limit, for a
        server and every request that it takes.
        """
        return self._plan(use, Settings(**use.list_options()), served=True)

    def expect_peak(self, use: PlannedUse) -> int:
        """What the engine's process alone is likely to hold at its peak, bytes that the plan's
        bound has in reserve left out: arrays of layers and of the head, which follow each other,
        count once, and no log-probabilities of prompts are requested.
        """
        settings = Settings(**use.list_options(), prompt_logprob_rows=0)
        plan = self._plan(use, settings, served=False)
        step = max(plan.step - SLACK, plan.logits)
        return plan.base + plan.weights + plan.draft + plan.kv + plan.draft_kv + plan.books + step

    def _plan(self, use: PlannedUse, settings: Settings, *, served: bool) -> MemoryPlan:
        machine = Machine(self.cores, UNLIMITED, UNLIMITED)
        plan = make_memory_plan(settings, self.get_needs(use.bits), machine, served=served)
        return replace(plan, base=self.held)

    def count_needed(self, use: PlannedUse) -> int:
        if use not in self._needed:
            self._needed[use] = self.plan(use).need
        return self._needed[use]

    def fits(self, use: PlannedUse, allowed: int) -> bool:
        """Where the weights alone are too large, nothing else is counted."""
        if self.held + self.get_needs(use.bits).weights > allowed:
            return False
        return self.count_needed(use) <= allowed

    def find_longest_context(self, use: PlannedUse, allowed: int) -> int | None:
        """The longest context up to the model's that fits; None where none does."""
        most = max(use.context, self.outline.spec.context)
        return find_most(
            lambda n: self.fits(replace(use, context=n), allowed),
            LEAST_CONTEXT,
            min(most, MOST_SLOTS // 2 // use.sequences),
        )

    def suggest(self, use: PlannedUse, allowed: int) -> list[PlannedUse]:
        """The three nearest uses that fit: one thing changed, then two."""
        found: list[PlannedUse] = []
        for one in self._list_smaller(use, allowed):
            if one not in found and self.fits(one, allowed):
                found.append(one)
            if len(found) == SUGGESTED:
                break
        return found

    def _list_smaller(self, use: PlannedUse, allowed: int) -> Iterator[PlannedUse]:
        length = self.find_longest_context(use, allowed)
        if length is not None:
            yield replace(use, context=min(length, use.context))
        fewer = find_most(lambda n: self.fits(replace(use, sequences=n), allowed), 1, use.sequences)
        if fewer is not None:
            yield replace(use, sequences=fewer)
        yield from (replace(use, kv_dtype=kv) for kv in SMALLER_KV if kv != use.kv_dtype)
        weights = self.get_needs(use.bits).weights
        smaller = [b for b in KINDS_BY_BITS if self.get_needs(b).weights < weights]
        yield from (replace(use, bits=bits) for bits in smaller)
        for bits, kv in product((*smaller, use.bits), (use.kv_dtype, *SMALLER_KV)):
            less = replace(use, bits=bits, kv_dtype=kv)
            single = replace(less, sequences=1)
            yield from (less, single)
            length = self.find_longest_context(single, allowed)
            if length is not None:
                yield replace(single, context=min(length, use.context))


def find_most(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from low to high that fits, where smaller ones fit too."""
    if low > high or not fits(low):
        return None
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
