"""The blocks that one replica's prefix cache should hold, by what was routed to it.

Invariant: at most as many keys as the cache has blocks.  A key is here only if all keys before it
in its chain are, and these were used as often or more: a chain is used from its end to its
beginning, so its beginning is evicted last.
Standard library only; knows no load.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Keys of at most `blocks` blocks; the least recently used are evicted."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._uses: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._uses)

    def count_prefix(self, chain: Sequence[bytes]) -> int:
        """How many first keys of a chain are here: a binary search, as none is missing before one
        that is here.
        """
        return bisect_left(chain, True, key=lambda key: key not in self._uses)

    def count_popular(self, chain: Sequence[bytes], prefix: int, uses: int) -> int:
        """How many of the first `prefix` keys, which are here, were used so often or more."""
        return bisect_left(chain, True, hi=prefix, key=lambda key: self._uses[key] < uses)

    def use(self, chain: Sequence[bytes]) -> None:
        """Adds a chain as far as it fits, its first key as the newest."""
        uses = self._uses
        for key in reversed(chain[: self.blocks]):
            uses[key] = uses.get(key, 0) + 1
            uses.move_to_end(key)
        while len(uses) > self.blocks:
            uses.popitem(last=False)
