"""What a draft model has computed of the next step already, while it drafted.

Invariant: a token is left out of a step only where the same token was computed at that slot, after
the same tokens, since the last step.  The last token of a draft was not; it waits until the draft
is known to be right, or for the next step.  Knows no model.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flyweight.sampling.arrays import columns
from flyweight.wire import I32, Batch

NO_ROWS: I32 = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class FedTokens:
    """The tokens of a sequence that were computed from `position` on."""

    id: Hashable
    position: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class LateToken:
    """A token of a draft that was verified, and not computed."""

    token: int
    position: int
    slot: int
    table: I32


@dataclass(slots=True)
class AheadTokens:
    """Those of all sequences: `fed` by the slot of the first, `late` by sequence."""

    fed: dict[int, FedTokens] = field(default_factory=dict)
    late: dict[Hashable, LateToken] = field(default_factory=dict)

    def forget(self, id: Hashable) -> None:
        """The slots of a sequence may be another's."""
        self.fed = {slot: one for slot, one in self.fed.items() if one.id != id}

    def take_late(self) -> Batch | None:
        """What waits since the last step, as a batch of its own: to be computed before others."""
        late, self.late = list(self.late.values()), {}
        if not late:
            return None
        positions = np.array([one.position for one in late], np.int32)
        tables = np.zeros((len(late), max(len(one.table) for one in late)), np.int32)
        for table, one in zip(tables, late, strict=True):
            table[: len(one.table)] = one.table
        return Batch(
            tokens=np.array([one.token for one in late], np.int32),
            positions=positions,
            slots=np.array([one.slot for one in late], np.int32),
            starts=np.arange(len(late) + 1, dtype=np.int32),
            contexts=positions + np.int32(1),
            tables=tables,
            rows=NO_ROWS,
            sampling=columns(()),
        )

    def take_rest(self, batch: Batch) -> Batch | None:
        """The sequences of a step that are still to be computed; None where none is."""
        if not self.fed or batch.branches:
            self.fed = {}
            return batch
        first = batch.slots[batch.starts[:-1]].tolist()
        left = [i for i, slot in enumerate(first) if not self._match(batch, i, slot)]
        self.fed = {}
        return _select(batch, left) if left else None

    def _match(self, batch: Batch, i: int, slot: int) -> bool:
        """Whether all tokens of a sequence are computed, or wait as its late token."""
        one = self.fed.get(slot)
        start, stop = int(batch.starts[i]), int(batch.starts[i + 1])
        if one is None or one.position != batch.positions[start]:
            return False
        tokens, known = batch.tokens[start:stop].tolist(), len(one.tokens)
        if len(tokens) > known + 1 or tokens[:known] != list(one.tokens)[: len(tokens)]:
            return False
        if len(tokens) > known:
            at = start + known
            position, table = int(batch.positions[at]), batch.tables[i]
            self.late[one.id] = LateToken(tokens[known], position, int(batch.slots[at]), table)
        return True


def _select(batch: Batch, chosen: Sequence[int]) -> Batch:
    """Some sequences of a batch, whose logits are not wanted."""
    if len(chosen) == len(batch.contexts):
        return batch
    starts, stops = batch.starts[:-1][chosen], batch.starts[1:][chosen]
    counts = stops - starts
    ends: I32 = np.zeros(len(chosen) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts)
    return replace(
        batch,
        tokens=batch.tokens[places],
        positions=batch.positions[places],
        slots=batch.slots[places],
        starts=ends,
        contexts=batch.contexts[chosen],
        tables=np.ascontiguousarray(batch.tables[chosen]),
        rows=NO_ROWS,
        hidden=None,
    )
