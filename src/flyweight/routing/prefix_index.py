"""The blocks that one replica's prefix cache should hold, by what was routed to it.

Invariant: at most as many keys as the cache has blocks.  A key is here only if all keys before it
in its chain are: a chain is used from its end to its beginning, so its beginning is evicted last.
Standard library only; knows no load.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Keys of at most `blocks` blocks; the least recently used are evicted."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def count_prefix(self, chain: Sequence[bytes]) -> int:
        """How many first keys of a chain are here: a binary search, as none is missing before one
        that is here.
        """
        return bisect_left(chain, True, key=self._is_missing)

    def use(self, chain: Sequence[bytes]) -> None:
        """Adds a chain as far as it fits, its first key as the newest."""
        keys = self._keys
        for key in reversed(chain[: self.blocks]):
            keys[key] = None
            keys.move_to_end(key)
        while len(keys) > self.blocks:
            keys.popitem(last=False)

    def _is_missing(self, key: bytes) -> bool:
        return key not in self._keys
