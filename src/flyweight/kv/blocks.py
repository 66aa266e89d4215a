"""The block pool: which block of K/V memory holds whose tokens, and which contents can be shared.

Invariant: a block is free exactly when no table holds it; an indexed block's contents are those its
key names.  Keys form a chain (each hashes its parent and the block's tokens), so equal keys mean
equal tokens from the first on, in one tenant. Knows ints and keys only: no arrays, no sequences, no
policy.  Standard library only.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from flyweight.kv.residency import Residency

DIGEST = 32  # bytes; wide enough against deliberate collisions

Key = Callable[[bytes, Sequence[int]], bytes]


def make_root_key(salt: str, adapter: str, fingerprint: str, secret: bytes = b"") -> bytes:
    """The parent of a first block.  Tenants, adapters and models with different roots never share a
    block; without the `secret` a key cannot be computed.
    """
    h = blake2b(digest_size=DIGEST, key=secret)
    for part in (salt, adapter, fingerprint):
        data = part.encode("utf-8", "surrogatepass")
        h.update(len(data).to_bytes(8, "little"))  # keeps ("ab", "c") from ("a", "bc")
        h.update(data)
    return h.digest()


def make_chain_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a full block that follows `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST).digest()


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first `count` tokens of block `src` to block `dst` before the step writes any."""

    src: int
    dst: int
    count: int


class ChainLink(NamedTuple):
    """A key, its parent's, and how many blocks go before."""

    key: bytes
    parent: bytes
    depth: int


@dataclass(slots=True, eq=False)
class Table:
    """One sequence's share of the pool.  `hashes` are the keys of its full blocks as far as
    computed: they depend on tokens only and outlive a release.  The first `published` blocks have
    been offered to the index.
    """

    root: bytes
    blocks: "array[int]" = field(default_factory=lambda: array("i"))
    hashes: list[bytes] = field(default_factory=list)
    published: int = 0


class BlockPool:
    """N blocks of B tokens.  A released block keeps its key until it is taken again, oldest release
    first; tables are released tail first, so prefixes outlive suffixes.  `on_index(block, link)` is
    called for each key that is found from then on, `on_evict(block, key)` for each that is lost,
    while the block still holds what it names; `residency` times a sample of the blocks.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        key: Key = make_chain_key,
        residency: Residency | None = None,
    ) -> None:
        self.blocks, self.block_size = blocks, block_size
        self.key, self.residency = key, residency
        self.refs = [0] * blocks
        self.hash_of: list[bytes | None] = [None] * blocks
        self.by_hash: dict[bytes, int] = {}
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self.reached = 0  # blocks from this one on were never taken
        self.on_evict: Callable[[int, bytes], None] = lambda block, key: None
        self.on_index: Callable[[int, ChainLink], None] = lambda block, link: None

    def match(self, table: Table, tokens: Sequence[int]) -> list[int]:
        """Blocks that already hold the beginning of `tokens`; at least one token is left to
        compute.  Changes nothing but the table's known keys.
        """
        full = (len(tokens) - 1) // self.block_size
        self.extend_keys(table, tokens, full)
        found: list[int] = []
        for key in table.hashes[:full]:
            block = self.by_hash.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def extend_keys(self, table: Table, tokens: Sequence[int], full: int) -> None:
        """Makes the keys of the first `full` blocks of `tokens` that are not made yet."""
        B, hashes = self.block_size, table.hashes
        for i in range(len(hashes), full):
            parent = hashes[-1] if hashes else table.root
            hashes.append(self.key(parent, tokens[i * B : (i + 1) * B]))

    def list_cached_runs(self) -> list[tuple[int, int]]:
        """The free blocks whose contents can be found: the first of each run, and how many."""
        runs: list[tuple[int, int]] = []
        for block, (held, key) in enumerate(zip(self.refs, self.hash_of, strict=True)):
            if held or key is None:
                continue
            first, count = runs[-1] if runs else (0, 0)
            if runs and block == first + count:
                runs[-1] = first, count + 1
            else:
                runs.append((block, 1))
        return runs

    def count_unheld(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are on the free list: what sharing them takes out of it."""
        return sum(1 for block in blocks if not self.refs[block])

    def share(self, table: Table, blocks: Sequence[int]) -> None:
        """Gives an empty table a share in blocks that hold its first tokens: matched ones, or
        another table's (a fork).
        """
        assert not table.blocks, "only an empty table can take a prefix"
        for block in blocks:
            if not self.refs[block]:
                del self.free[block]
            self.refs[block] += 1
        table.blocks.extend(blocks)
        if self.residency is not None:
            self.residency.record_shared(blocks)

    def count_needed(self, table: Table, start: int, stop: int) -> int:
        """Free blocks that `grow` with the same arguments would take."""
        held = len(table.blocks)
        more = max(0, -(-stop // self.block_size) - held)
        first = start // self.block_size
        return more + (first < held and self.refs[table.blocks[first]] > 1)

    def grow(self, table: Table, start: int, stop: int) -> Copy | None:
        """Makes positions start:stop writable by this table alone, all before `start` being valid.
        Appends blocks, and replaces a shared block that `start` falls in; the copy it returns must
        be made before anything is written.
        """
        B, blocks = self.block_size, table.blocks
        copy = None
        first = start // B
        if first < len(blocks) and self.refs[blocks[first]] > 1:
            copy = self._copy_on_write(table, first, start % B)
        while len(blocks) * B < stop:
            blocks.append(self._take())
        return copy

    def trim(self, table: Table, stop: int) -> None:
        """Gives up the blocks beyond the one of position `stop` - 1; no later position is valid."""
        needed = -(-stop // self.block_size)
        while len(table.blocks) > needed:
            self._drop(table.blocks.pop())

    def branch(self, table: Table, first: int, stop: int) -> Table:
        """A table that shares the blocks before the one with position `first`, and has its own from
        there to `stop`.
        """
        new = Table(table.root, table.blocks[: first // self.block_size])
        for block in new.blocks:
            self.refs[block] += 1
        while len(new.blocks) * self.block_size < stop:
            new.blocks.append(self._take())
        return new

    def publish(self, table: Table, tokens: Sequence[int], computed: int) -> None:
        """Indexes the table's blocks that are wholly below `computed`."""
        full = computed // self.block_size
        if full <= table.published:
            return
        self.extend_keys(table, tokens, full)
        for i in range(table.published, full):
            block, key = table.blocks[i], table.hashes[i]
            if self.hash_of[block] is None and key not in self.by_hash:
                self._index(block, ChainLink(key, table.hashes[i - 1] if i else table.root, i))
        table.published = full

    def take(self) -> int:
        """A free block for contents from elsewhere, until `add`."""
        return self._take()

    def add(self, block: int, link: ChainLink) -> None:
        """Gives up a block that was taken and now holds what a key names: it can be found."""
        self._index(block, link)
        self._drop(block)

    def keep(self, blocks: Sequence[int]) -> None:
        """Of the free blocks, these are the last to be taken, the first of them at the very end."""
        for block in reversed(blocks):
            if not self.refs[block]:
                self.free.move_to_end(block)

    def release(self, table: Table) -> None:
        """Gives up all of a table's blocks, tail first."""
        for block in reversed(table.blocks):
            self._drop(block)
        del table.blocks[:]
        table.published = 0

    def recover(self) -> None:
        """Frees every block after an interrupt that may have fallen anywhere; no table holds any
        from here on.  A key is set after its block was written and dropped before it is written
        again, so the keys stay true.
        """
        self.refs = [0] * self.blocks
        if self.residency is not None:
            self.residency.forget()
        self.by_hash = {key: block for block, key in enumerate(self.hash_of) if key is not None}
        unkeyed_first = sorted(
            range(self.blocks), key=lambda block: self.hash_of[block] is not None
        )
        self.free = OrderedDict.fromkeys(unkeyed_first)

    def forget(self) -> int:
        """Drops every key: nothing that was computed before is found.  Returns how many."""
        lost = len(self.by_hash)
        self.by_hash.clear()
        self.hash_of = [None] * self.blocks
        if self.residency is not None:
            self.residency.forget()
        return lost

    def check_integrity(self, tables: Iterable[Table]) -> None:
        """Asserts that held + free is the whole pool and that the index is exact; `tables` are all
        live ones.
        """
        held = [0] * len(self.refs)
        for table in tables:
            assert len(set(table.blocks)) == len(table.blocks), "a table holds a block twice"
            assert table.published <= len(table.blocks), "published beyond the table"
            for block in table.blocks:
                held[block] += 1
        assert held == self.refs, "reference counts differ from the tables"
        assert set(self.free) == {b for b, n in enumerate(held) if n == 0}, (
            "free list differs from the unheld blocks"
        )
        indexed = {key: block for block, key in enumerate(self.hash_of) if key is not None}
        assert indexed == self.by_hash, "index differs from the blocks' keys"

    def _index(self, block: int, link: ChainLink) -> None:
        self.hash_of[block] = link.key
        self.by_hash[link.key] = block
        self.on_index(block, link)

    def _copy_on_write(self, table: Table, index: int, count: int) -> Copy:
        """Replaces a shared block by one of the table's own (copy-on-write)."""
        src, dst = table.blocks[index], self._take()
        table.blocks[index] = dst
        self._drop(src)
        table.published = min(table.published, index)
        return Copy(src, dst, count)

    def _take(self) -> int:
        block, _ = self.free.popitem(last=False)
        self.refs[block] = 1
        if block >= self.reached:
            self.reached = block + 1
        key = self.hash_of[block]
        if self.residency is not None:
            self.residency.record_taken(block, evicted=key is not None)
        if key is not None:
            del self.by_hash[key]
            self.hash_of[block] = None
            self.on_evict(block, key)
        return block

    def _drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block]:
            return
        self.free[block] = None
        if self.hash_of[block] is None:
            self.free.move_to_end(block, last=False)  # nothing to find in it: first to be taken
