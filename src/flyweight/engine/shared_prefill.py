"""Which waiting sequences are to wait for tokens that a running one computes now: a choice for its
leader's prompt, any other sequence for full blocks that it would find in the prefix cache once they
are published.

Invariant: a sequence waits only for one before it in order, that runs and has not computed those
tokens.  So the first in order never waits here, and the wait ends as soon as the other is
preempted, aborted or finished.  Standard library only; plans nothing and holds no block.
"""

from collections.abc import Iterable

from flyweight.engine.prefix import adopt_keys
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.kv.blocks import BlockPool


class SharedPrefills:
    """The prompts under way, of one pool; without prefix caching only leaders are waited for."""

    def __init__(self, pool: BlockPool, enabled: bool) -> None:
        self.pool, self.enabled = pool, enabled
        self.computing: dict[bytes, Sequence] = {}  # by key: who computes that block

    def note(self, running: Iterable[Sequence]) -> None:
        """Reads anew what is computed, before sequences are admitted."""
        self.computing = {}
        if self.enabled:
            for seq in running:
                if seq.computed < len(seq.tokens) - 1:
                    self._add(seq)

    def begin(self, seq: Sequence, valid: int) -> int:
        """A sequence is about to start with `valid` tokens; returns how many of them were computed
        while it waited here.
        """
        saved = 0 if seq.awaited is None else max(0, valid - seq.found)
        seq.awaited = None
        if self.enabled:
            self._add(seq, valid)
        return saved

    def is_ready(self, seq: Sequence) -> bool:
        """Whether a waiting sequence may start now."""
        return _has_leaders_prompt(seq) and not self._begin_wait(seq)

    def is_held(self, seq: Sequence) -> bool:
        """Whether it was found to wait for another, and still does; costs one look-up."""
        return seq.awaited is not None and self._is_computing(seq.awaited, seq)

    def _begin_wait(self, seq: Sequence) -> bool:
        """Whether it is to wait: then for the last of the blocks in a row that are computed now, so
        that the blocks before are not looked up again at every step.
        """
        if not self.computing:
            return False
        if self.is_held(seq):
            return True
        B = self.pool.block_size
        usable = seq.first_row // B
        adopt_keys(seq, B)
        found = len(self.pool.match(seq.table, seq.tokens)) if usable else 0
        stop = found
        while stop < usable and self._is_computing(stop, seq):
            stop += 1
        if stop <= found:
            return False
        if seq.awaited is None:
            seq.found = found * B
        seq.awaited = stop - 1
        return True

    def _is_computing(self, block: int, seq: Sequence) -> bool:
        """Whether one before `seq` in order computes this block of it."""
        other = self.computing.get(seq.table.hashes[block])
        if other is None or other.state is not SequenceState.RUNNING:
            return False
        return other.order < seq.order and other.computed < (block + 1) * self.pool.block_size

    def _add(self, seq: Sequence, valid: int | None = None) -> None:
        """Notes the full blocks of the known tokens after those that are `valid`."""
        B, table = self.pool.block_size, seq.table
        first = (seq.computed if valid is None else valid) // B
        stop = len(seq.tokens) // B
        self.pool.extend_keys(table, seq.tokens, stop)
        for key in table.hashes[first:stop]:
            other = self.computing.setdefault(key, seq)
            if seq.order < other.order:
                self.computing[key] = seq


def _has_leaders_prompt(seq: Sequence) -> bool:
    """Whether a choice may start: its leader's prompt is computed except for the last token, or was
    once.
    """
    leader = seq.leader
    return (
        leader is None
        or leader.state is SequenceState.FINISHED
        or leader.computed >= seq.prompt - 1
        or leader.generated > 0
    )
