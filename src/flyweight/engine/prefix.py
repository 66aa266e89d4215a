"""What of a sequence's tokens need not be computed: cached blocks of its root, or its leader's; and
why no more were found: keys whose blocks were taken again, and the tokens of sequences that ended.

Invariant: a prefix ends before the first row that is wanted, and never crosses from one root to
another. What is remembered is bounded, and read only on request; a prompt is compared with those of
its own root, so nothing of another tenant, adapter or model is revealed. Standard library only.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from secrets import token_bytes
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.kv.blocks import DIGEST, BlockPool, Table, make_root_key
from flyweight.types import Request, Reuse

Tokens: TypeAlias = "array[int]"
KnownTokens: TypeAlias = tuple[Tokens, int]  # of a sequence, and how many of them are its prompt
NO_ADAPTERS: Mapping[str, str] = MappingProxyType({})
KEYS = 4096  # lost keys that are remembered
EXPECTED = 8  # tokens of a known sequence that are shown
LIKE = 4  # common tokens of a sequence that are not chance: BOS, or a mark of the chat template
PROMPTS, TOKENS = 128, 1 << 17  # ended sequences, and tokens of all of them: half a megabyte


class Known:
    """The memory of one pool."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.lost: OrderedDict[bytes, None] = OrderedDict()
        self.ended: deque[tuple[bytes, KnownTokens]] = deque()
        self._tokens = 0  # in `ended`

    def forget(self, key: bytes) -> None:
        """A key whose block is taken for something else."""
        self.lost[key] = None
        if len(self.lost) > KEYS:
            self.lost.popitem(last=False)

    def end(self, root: bytes, tokens: Tokens, prompt: int) -> None:
        """A sequence that ended, as far as it was computed; its first `prompt` tokens are no
        answer.
        """
        if len(tokens) < self.pool.block_size:
            return  # nothing of it could be found
        self.ended.append((root, (tokens, prompt)))
        self._tokens += len(tokens)
        while len(self.ended) > PROMPTS or self._tokens > TOKENS:
            self._tokens -= len(self.ended.popleft()[1][0])

    def explain(
        self, table: Table, prompt: Tokens, usable: int, salted: bool, live: Iterable[KnownTokens]
    ) -> Reuse:
        """Why no more than `usable` tokens, or fewer, are taken from the cache.  `live` are other
        sequences with the same root.
        """
        B, keys = self.pool.block_size, table.hashes
        full = (len(prompt) - 1) // B
        held = next((i for i in range(full) if keys[i] not in self.pool.by_hash), full)
        hit = min(held, usable // B) * B
        ended = [known for root, known in self.ended if root == table.root]
        near, like_ended = find_nearest(prompt, ended)
        now, like_live = find_nearest(prompt, live)
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
        like, same = (like_ended, near) if near >= now else (like_live, now)
        if diverged is None or not LIKE <= shared == same:
            return Reuse(hit, reason, diverged, block_size=B)
        expected = tuple(like[0][shared : shared + EXPECTED])
        return Reuse(hit, reason, diverged, expected, bool(expected) and shared >= like[1], B)


def find_nearest(prompt: Tokens, known: Iterable[KnownTokens]) -> tuple[int, KnownTokens]:
    """The sequence with the longest common beginning, and its length."""
    nothing: tuple[int, KnownTokens] = (0, (prompt, 0))
    return max(
        ((count_common(prompt, one[0]), one) for one in known),
        key=lambda pair: pair[0],
        default=nothing,
    )


def count_common(a: Seq[int], b: Seq[int]) -> int:
    """How many first tokens are the same, of two sequences of one type."""
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


def adopt_keys(seq: Sequence, block_size: int) -> None:
    """Gives a choice the keys of its leader's prompt, which need not be made again."""
    if seq.leader is not None and not seq.table.hashes:
        seq.table.hashes = seq.leader.table.hashes[: seq.prompt // block_size]


class KeyBase(NamedTuple):
    """What the keys of an engine's blocks begin with.  `fingerprint` names the model; without a
    `secret` the process has one of its own.  `adapters` are fingerprints by name, where a name may
    mean another adapter in the next process.
    """

    fingerprint: str = ""
    secret: bytes | None = None
    adapters: Mapping[str, str] = NO_ADAPTERS


ANY_MODEL = KeyBase()


class PrefixCache:
    """The prefix cache of one pool."""

    def __init__(self, pool: BlockPool, enabled: bool, keys: KeyBase = ANY_MODEL) -> None:
        self.pool, self.enabled, self.keys = pool, enabled, keys
        self.secret = token_bytes(DIGEST) if keys.secret is None else keys.secret
        self.known = Known(pool)

    def find_root(self, request: Request) -> bytes:
        """The key that a request's chain of blocks begins with."""
        adapter, known = request.adapter, self.keys.adapters
        adapter = f"{adapter} {known[adapter]}" if adapter in known else adapter
        return make_root_key(request.salt, adapter, self.keys.fingerprint, self.secret)

    def find(self, seq: Sequence) -> tuple[list[int], int]:
        """Blocks that hold the sequence's first tokens, and how many tokens of them are valid:
        cached ones, as far as nothing is wanted of their logits, or its leader's prompt, of which
        the last token is left to compute.
        """
        leader, most, B = seq.leader, seq.prompt - 1, self.pool.block_size
        adopt_keys(seq, B)
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
            self.known.end(seq.table.root, seq.tokens[: seq.computed], seq.prompt)

    def explain(self, seq: Sequence, live: Seq[Sequence]) -> Reuse:
        """What becomes of a prompt in the cache, before its blocks are taken; `live` are the
        sequences of all requests.
        """
        if not self.enabled:
            return Reuse(0, "caching_off", None, block_size=self.pool.block_size)
        if seq.leader is not None and seq.leader.reuse is not None:
            return seq.leader.reuse  # they share one prompt
        root, salted = seq.table.root, bool(seq.request.salt)
        others = [
            (s.tokens, s.prompt)
            for s in live
            if s.request is not seq.request and s.table.root == root
        ]
        return self.known.explain(seq.table, seq.tokens, seq.first_row, salted, others)
