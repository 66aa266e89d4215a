"""The keys of a prompt's full blocks, as a replica's prefix cache makes them.

Invariant: prompts have a key in common only where they are equal up to the end of that block, and
have the same salt, adapter and model.  Standard library only; knows no replica.
"""

from collections.abc import Sequence
from typing import NamedTuple

from flyweight.kv.blocks import make_chain_key, make_root_key


class RoutingKeys(NamedTuple):
    """What keys are made with: `fingerprint` names the model, without `secret` they cannot be
    computed, `block_size` is that of the replicas.
    """

    fingerprint: str
    secret: bytes
    block_size: int

    def make_keys(self, tokens: Sequence[int], salt: str = "", adapter: str = "") -> list[bytes]:
        """One key for each full block that may be found: at least one token is left to compute."""
        size, keys = self.block_size, list[bytes]()
        parent = make_root_key(salt, adapter, self.fingerprint, self.secret)
        for start in range(0, (len(tokens) - 1) // size * size, size):
            parent = make_chain_key(parent, tokens[start : start + size])
            keys.append(parent)
        return keys
