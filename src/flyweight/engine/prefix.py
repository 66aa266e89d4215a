"""What of a sequence's tokens need not be computed: cached blocks of its root, or its leader's.

Invariant: a prefix ends before the first row that is wanted, and never crosses from one root to
another.  Standard library only.
"""

from collections.abc import Sequence as Seq
from secrets import token_bytes

from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.kv.blocks import DIGEST, BlockPool, make_root_key
from flyweight.kv.known import Known
from flyweight.types import Request, Reuse


class PrefixCache:
    """The prefix cache of one pool.  `fingerprint` names the model in its keys, which a `secret`
    begins: one of this process where none is given.
    """

    def __init__(
        self, pool: BlockPool, enabled: bool, fingerprint: str = "", secret: bytes | None = None
    ) -> None:
        self.pool, self.enabled, self.fingerprint = pool, enabled, fingerprint
        self.secret = token_bytes(DIGEST) if secret is None else secret
        self.known = Known(pool)

    def root(self, request: Request) -> bytes:
        """The key that a request's chain of blocks begins with."""
        return make_root_key(request.salt, request.adapter, self.fingerprint, self.secret)

    def find(self, seq: Sequence) -> tuple[list[int], int]:
        """Blocks that hold the sequence's first tokens, and how many tokens of them are valid:
        cached ones, as far as nothing is wanted of their logits, or its leader's prompt, of which
        the last token is left to compute.
        """
        leader, most, B = seq.leader, seq.prompt - 1, self.pool.block_size
        if leader is not None and not seq.table.hashes:
            seq.table.hashes = leader.table.hashes[: seq.prompt // B]
        found = self.pool.match(seq.table, seq.tokens) if self.enabled else []
        found = found[: seq.first_row // B]
        valid = len(found) * B
        if leader is None:
            if not seq.scheduled:
                seq.cached = valid
        else:
            seq.cached = leader.cached
            if leader.state is SequenceState.RUNNING and leader.computed >= most > valid:
                return list(leader.table.blocks[: -(-most // B)]), most
        return found, valid

    def publish(self, seq: Sequence) -> None:
        """Lets others find the full blocks of what is computed."""
        if self.enabled:
            self.pool.publish(seq.table, seq.tokens, seq.computed)

    def end(self, seq: Sequence) -> None:
        """Remembers what was computed of a sequence that ends, for `explain`."""
        if self.enabled and not seq.index:
            self.known.end(seq.table.root, seq.tokens[: seq.computed])

    def explain(self, seq: Sequence, live: Seq[Sequence]) -> Reuse:
        """What becomes of a prompt in the cache, before its blocks are taken; `live` are the
        sequences of all requests.
        """
        if not self.enabled:
            return Reuse(0, "caching_off", None)
        if seq.leader is not None and seq.leader.reuse is not None:
            return seq.leader.reuse  # they share one prompt
        root, salted = seq.table.root, bool(seq.request.salt)
        others = [s.tokens for s in live if s.request is not seq.request and s.table.root == root]
        return self.known.explain(seq.table, seq.tokens, seq.first_row, salted, others)
