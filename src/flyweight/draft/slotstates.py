"""The model's states, by slot of its blocks, for a drafter that makes states.

What was tapped of a step waits: states are made and stored when they are read, of many steps at
once.

Invariant: `held` has every step so far; a slot's state is of the token computed last in that slot,
or there is none.  What waits takes `WAITING` bytes at most.  Knows no drafts.  T tokens, H hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyweight.draft.treegrowth import StateLayer
from flyweight.spec import ModelSpec, StoredSlots
from flyweight.wire import F32, I32, Batch, Tensor

WAITING = 1 << 20  # bytes that wait


class StateModel(StateLayer, Protocol):
    """A layer that makes states of H elements."""

    @property
    def hidden(self) -> int: ...
    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target that its first states are made of."""
        ...

    def make_first(self, taps: Mapping[int, Tensor]) -> Tensor:
        """The states [T,H] of a step's tokens."""
        ...


@dataclass(slots=True)
class SlotStates:
    """The model's state of each slot's token, the position it was computed at, and the token after
    it in the pair whose K and V are there; -1 for none.
    """

    states: F32  # [slots, H]
    positions: I32  # [slots]
    nexts: I32  # [slots]

    @classmethod
    def make(cls, slots: int, hidden: int) -> "SlotStates":
        none = np.full(slots, -1, np.int32)
        return cls(np.zeros((slots, hidden), np.float32), none, none.copy())

    def copy(self, source: I32, target: I32) -> None:
        """Makes the state of each target slot that of the source's."""
        for column in (self.states, self.positions, self.nexts):
            column[target] = column[source]


class StateStore:
    """The states of `slots` slots, that `model` makes of what it taps."""

    def __init__(self, model: StateModel, slots: int) -> None:
        self.model = model
        self._held = SlotStates.make(slots, model.hidden)
        self._most = most = max(1, WAITING // (4 * model.hidden * len(model.taps)))
        self._waiting = {tap: np.empty((most, model.hidden), np.float32) for tap in model.taps}
        self._slots, self._positions = np.empty(most, np.int32), np.empty(most, np.int32)
        self._count = 0  # tokens that wait

    @property
    def held(self) -> SlotStates:
        """All states; those that wait are stored."""
        if self._count:
            self._store_waiting()
        return self._held

    def add(self, batch: Batch, taps: Mapping[int, Tensor]) -> None:
        """A step computed these; a long one does not wait."""
        slots, first = batch.slots, self._count
        if first and first + len(slots) > self._most:
            self._store_waiting()
            first = 0
        stop = first + len(slots)
        if stop > self._most:
            self._store(slots, batch.positions, taps)
        else:
            for tap, rows in self._waiting.items():
                rows[first:stop] = self.model.ops.fetch(taps[tap])
            self._slots[first:stop], self._positions[first:stop] = slots, batch.positions
            self._count = stop
        if batch.ancestors is not None:
            held = self.held
            held.copy(*batch.ancestors)
            held.nexts[batch.ancestors[1]] = -1

    def clear(self) -> None:
        """No slot has a state."""
        self._count = 0
        self._held.positions.fill(-1)

    def _store_waiting(self) -> None:
        count, self._count = self._count, 0
        upload = self.model.ops.upload
        taps = {tap: upload(rows[:count]) for tap, rows in self._waiting.items()}
        self._store(self._slots[:count], self._positions[:count], taps)

    def _store(self, slots: I32, positions: I32, taps: Mapping[int, Tensor]) -> None:
        """Later tokens overwrite earlier ones.  Where it fails, their slots have no states."""
        held = self._held
        held.positions[slots] = held.nexts[slots] = -1
        held.states[slots] = self.model.ops.fetch(self.model.make_first(taps))
        held.positions[slots] = positions


def describe_slots(spec: ModelSpec, scratch: int) -> StoredSlots:
    """For the memory plan: a state of 32 bits, its position and the token after it; what waits."""
    return StoredSlots(spec, 4 * spec.hidden + 8, scratch, WAITING)
