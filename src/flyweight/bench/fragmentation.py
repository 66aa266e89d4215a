"""How much K/V memory holds tokens: a trace of requests through block pools of different block
sizes, on a simulated clock.

Invariant: each step stores one token for every running sequence.  Requests start in order, as soon
as their blocks are free; all else is `BlockPool`'s own accounting.  A contiguous reservation of the
longest sequence is a pool whose blocks have that many slots.  Nothing is computed or shared.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from flyweight.kv.blocks import BlockPool, Table

Lengths = tuple[int, int]  # tokens of a prompt, of its answer


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What became of a trace.  `waste` is the share of reserved slots without a token, over all
    steps; `mean` and `most` count sequences that run at once.
    """

    block_size: int
    steps: int
    waste: float
    mean: float
    most: int
    preempted: int


@dataclass(slots=True, eq=False)
class StoredSequence:
    """`stored` tokens of it are in the pool, which holds `last` in the end: the last token of an
    answer is never stored.
    """

    stored: int
    last: int
    table: Table = field(default_factory=lambda: Table(b""))


class SimulatedMemory:
    """A pool of `slots` tokens in blocks of `block_size`, and the sequences of requests that all
    wait from the start.
    """

    def __init__(self, requests: Sequence[Lengths], slots: int, block_size: int) -> None:
        self.pool = BlockPool(slots // block_size, block_size)
        self.waiting = deque(StoredSequence(a, a + b - 1) for a, b in requests)
        self.running: list[StoredSequence] = []
        self.preempted = 0

    def run(self) -> MemoryUse:
        """Until all requests have ended."""
        steps = sequences = most = reserved = stored = 0
        while self.running or self.waiting:
            self._admit()
            steps += 1
            sequences += len(self.running)
            most = max(most, len(self.running))
            reserved += self.pool.block_size * sum(len(seq.table.blocks) for seq in self.running)
            stored += sum(seq.stored for seq in self.running)
            self._advance()
        waste, mean = 1 - stored / reserved, sequences / steps
        return MemoryUse(self.pool.block_size, steps, waste, mean, most, self.preempted)

    def _admit(self) -> None:
        """Starts requests in order.  A block stays free for each sequence that may still need one,
        as in the scheduler.
        """
        while self.waiting:
            seq = self.waiting[0]
            spare = sum(1 for s in self.running if s.last > self._count_slots(s))
            need = self.pool.count_needed(seq.table, 0, seq.stored)
            if need + spare > len(self.pool.free):
                break
            self.pool.grow(seq.table, 0, seq.stored)
            self.running.append(self.waiting.popleft())
        assert self.running, "a request above the pool"

    def _advance(self) -> None:
        """Stores the next token of each sequence; ended ones leave, and where no block is free the
        youngest is preempted.
        """
        for seq in tuple(self.running):
            if not seq.table.blocks:
                continue  # preempted in this step
            if seq.stored == seq.last:
                self.running.remove(seq)
                self.pool.release(seq.table)
                continue
            while not self._store(seq):
                self._preempt(self.running[-1])

    def _store(self, seq: StoredSequence) -> bool:
        """Whether the next token found a slot, or the sequence was preempted."""
        if not seq.table.blocks:
            return True
        if seq.stored == self._count_slots(seq):
            if not self.pool.free:
                return False
            self.pool.grow(seq.table, seq.stored, seq.stored + 1)
        seq.stored += 1
        return True

    def _preempt(self, seq: StoredSequence) -> None:
        """Back to the front of those that wait; its tokens are stored again later."""
        self.running.remove(seq)
        self.pool.release(seq.table)
        self.waiting.appendleft(seq)
        self.preempted += 1

    def _count_slots(self, seq: StoredSequence) -> int:
        return len(seq.table.blocks) * self.pool.block_size


def make_lengths(count: int, longest: int, seed: int = 0) -> list[Lengths]:
    """A trace of `count` requests whose lengths are spread as those of conversations are:
    log-normally, with medians of 1,020 and 129 tokens; cut to `longest` tokens together.
    """
    rng = random.Random(seed)
    found: list[Lengths] = []
    for _ in range(count):
        prompt = min(longest - 1, 1 + int(rng.lognormvariate(6.93, 0.9)))
        answer = min(longest - prompt, 1 + int(rng.lognormvariate(4.86, 0.9)))
        found.append((prompt, answer))
    return found
