"""What the prefix cache held recently: keys whose blocks were taken again, and the tokens of
sequences that ended.  It explains why a prompt was not found.

Invariant: bounded, and read only on request; a prompt is compared with those of its own root, so
nothing of another tenant, adapter or model is revealed.  Standard library only.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TypeAlias

from flyweight.kv.blocks import BlockPool, Table
from flyweight.types import Reuse

Tokens: TypeAlias = "array[int]"
KEYS = 4096  # lost keys that are remembered
PROMPTS, TOKENS = 128, 1 << 17  # ended sequences, and tokens of all of them: half a megabyte


class Known:
    """The memory of one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.lost: OrderedDict[bytes, None] = OrderedDict()
        self.ended: deque[tuple[bytes, Tokens]] = deque()
        self._tokens = 0  # in `ended`

    def forget(self, key: bytes) -> None:
        """A key whose block is taken for something else."""
        self.lost[key] = None
        if len(self.lost) > KEYS:
            self.lost.popitem(last=False)

    def end(self, root: bytes, tokens: Tokens) -> None:
        """A sequence that ended, as far as it was computed."""
        if len(tokens) < self.pool.block_size:
            return  # nothing of it could be found
        self.ended.append((root, tokens))
        self._tokens += len(tokens)
        while len(self.ended) > PROMPTS or self._tokens > TOKENS:
            self._tokens -= len(self.ended.popleft()[1])

    def explain(
        self, table: Table, prompt: Tokens, usable: int, salted: bool, live: Iterable[Tokens]
    ) -> Reuse:
        """Why no more than `usable` tokens, or fewer, are taken from the cache.  `live` are the
        tokens of other sequences with the same root.
        """
        B, keys = self.pool.block_size, table.hashes
        full = (len(prompt) - 1) // B
        held = next((i for i in range(full) if keys[i] not in self.pool.by_hash), full)
        hit = min(held, usable // B) * B
        ended = [tokens for root, tokens in self.ended if root == table.root]
        near = max((count_common(prompt, tokens) for tokens in ended), default=0)
        now = max((count_common(prompt, tokens) for tokens in live), default=0)
        shared = max(near, now, held * B)
        diverged = shared if shared < len(prompt) else None
        if hit < held * B:
            reason = "rows_wanted"
        elif held == full:
            reason = "" if full else "short"
        elif keys[held] in self.lost or near >= (held + 1) * B:
            reason = "evicted"
        elif now >= (held + 1) * B:
            reason = "not_yet"
        elif salted and not shared and not ended:
            reason = "new_salt"
        else:
            reason = "never_seen"
        return Reuse(hit, reason, diverged)


def count_common(a: Tokens, b: Tokens) -> int:
    """How many first tokens are the same."""
    high = min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    low = 0  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
