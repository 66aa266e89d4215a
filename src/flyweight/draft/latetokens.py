"""Which tokens of a request's text have no K/V of a draft model yet.

A slot has the key of the tokens up to the one whose K/V is there, in one tenant and under one
adapter.

Invariant: a token counts as computed where its slot has the key of the text up to it, as all slots
before have.  Up to where a request was found to be computed nothing changes, but for copies, which
take keys along: a step of drafts writes from the newest token on.  A key that is wrong costs
drafts, never text.  Computes nothing.
"""

from array import array
from collections.abc import Hashable

import numpy as np

from flyweight.draft.drafter import DraftRequest
from flyweight.wire import I32

BUDGET = 2048  # tokens computed at once, where no limit is given
FEW = 16  # late ones that are computed along with a draft's first
NONE = -1  # no hash is
SLOT_BYTES = 8  # of a key


class LateTokens:
    """Of one draft model, with slots in `blocks` of `block_size`; at most `budget` tokens are
    computed at once.
    """

    def __init__(self, blocks: int, block_size: int, budget: int = BUDGET) -> None:
        self.block_size, self.budget = block_size, budget
        self.few = min(FEW, budget // 4)  # so that a row that is not behind has room
        self._keys = array("q", [NONE]) * (blocks * block_size)
        self._column = np.frombuffer(self._keys, np.int64)  # the same memory
        self._computed: dict[Hashable, tuple[int, int]] = {}  # how many tokens, and their key

    def copy(self, source: I32, target: I32) -> None:
        """K/V of these slots are copied."""
        self._column[target] = self._column[source]

    def find_first(self, request: DraftRequest, stop: int) -> int:
        """The first position that is not computed, or `stop`."""
        root = hash((request.tenant, request.adapter))
        done, key = self._computed.get(request.id, (0, root))
        tokens, blocks, keys, size = request.tokens, request.blocks, self._keys, self.block_size
        if done > stop or (done and keys[self._find_slot(request, done - 1)] != key):
            done, key = 0, root
        while done < stop:
            after = hash((key, tokens[done]))
            if keys[blocks[done // size] * size + done % size] != after:
                break
            done, key = done + 1, after
        self._computed[request.id] = done, key
        return done

    def claim(self, request: DraftRequest, stop: int) -> int:
        """From now on the tokens before `stop` count as computed, so that another request with
        these blocks does without; their key.
        """
        done, key = self._computed[request.id]
        for position in range(done, stop):
            key = self.add(request, position, key, request.tokens[position])
        self._computed[request.id] = stop, key
        return key

    def add(self, request: DraftRequest, position: int, key: int, token: int) -> int:
        """The same of one token after those with this key, which may be a draft's; the key of
        all.
        """
        key = hash((key, token))
        self._keys[self._find_slot(request, position)] = key
        return key

    def forget(self, id: Hashable) -> None:
        self._computed.pop(id, None)

    def forget_all(self) -> None:
        """Nothing counts as computed."""
        self._column.fill(NONE)
        self._computed.clear()

    def _find_slot(self, request: DraftRequest, position: int) -> int:
        block, place = divmod(position, self.block_size)
        return request.blocks[block] * self.block_size + place
