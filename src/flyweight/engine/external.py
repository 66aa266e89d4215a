"""The external prefix cache: blocks that the pool has are saved in a `BlockStore`, and taken from
there once the pool, or a process that ended, has lost them.

Invariant: a block gets its key after its contents are written, so an interrupt at any point leaves
true keys.  Blocks are put back before a step is planned, as free blocks of the pool: whether a
sequence may start is decided as without the cache, and one that waits for peers is passed over.
Saving takes `SHARE` of the time between steps, and all of it while the engine is idle.  Knows no
arrays and no model.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import takewhile
from math import inf

from flyweight.engine import capacity
from flyweight.engine.admission import Admission, ContinuousAdmission, Live
from flyweight.engine.lifecycle import LiveSequences
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.peer_blocks import Estimate, PeerBlocks
from flyweight.engine.sequence import Sequence, SequenceState
from flyweight.kv.blockbytes import BlockBytes
from flyweight.kv.blocks import BlockPool, ChainLink
from flyweight.kv.peers.server import BlockServer
from flyweight.kv.store import BlockStore

SHARE = 0.05  # of the time, for saving blocks while requests are under way
MOST_CREDIT = 0.05  # seconds of saving at a time, between two steps
AT_ONCE = 0.02  # seconds of putting back blocks before a step, while sequences run
AT_END = 1.0  # seconds of saving when the engine ends


class ExternalCache:
    """Of one pool.  `disk` gets blocks when they are published, `swap` when the pool takes them for
    something else.  Blocks that are in neither may come from `peers`; `server` is for the peers
    that need ours.
    """

    def __init__(
        self,
        pool: BlockPool,
        kv: BlockBytes,
        metrics: EngineMetrics,
        disk: BlockStore | None = None,
        swap: BlockStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        peers: PeerBlocks | None = None,
        server: BlockServer | None = None,
    ) -> None:
        self.pool, self.kv, self.metrics, self.clock = pool, kv, metrics, clock
        self.disk, self.swap = disk, swap
        self.stores = tuple(store for store in (swap, disk) if store is not None)
        self.peers, self.server = peers, server
        self._sources: tuple[BlockStore | PeerBlocks, ...] = self.stores
        if peers is not None:
            self._sources = (*self.stores, peers)
        self._links: list[ChainLink | None] = [None] * pool.blocks  # of what each block had last
        self._unsaved = OrderedDict[bytes, None]()  # keys that `disk` is to get, in this order
        self._saved, self._loaded = kv.make_buffer(), kv.make_buffer()
        self._restored = 0  # blocks that were put back
        self._credit, self._since = 0.0, clock()
        self.admission = HeldAdmission(ContinuousAdmission())
        pool.on_index = self._note_index

    def attach(self, live: LiveSequences) -> None:
        """From now on sequences wait until their blocks are put back."""
        self.admission.policy, live.admission = live.admission, self.admission

    def use_costs(self, estimate: Estimate) -> None:
        """From now on waits for peers are compared with these seconds of computing tokens."""
        if self.peers is not None:
            self.peers.estimate = estimate

    # --- blocks out of the pool ---

    @property
    def swapped(self) -> int:
        """Bytes of swap space in use."""
        return self.swap.nbytes if self.swap is not None else 0

    @property
    def wanted(self) -> bool:
        """Whether there is something to save."""
        return bool(self._unsaved)

    def run_idle(self) -> None:
        """Saves one block, while the engine is idle."""
        self._save_next()

    def step(self) -> None:
        """Between two steps: saves blocks for a share of the time that has passed."""
        now = self.clock()
        self._credit = min(MOST_CREDIT, self._credit + SHARE * (now - self._since))
        self._since = now
        while self._unsaved and self._credit > 0:
            self._save_next()
            after = self.clock()
            self._credit, now = self._credit - (after - now), after

    def publish(self, keys: Seq[bytes]) -> None:
        """Saves the blocks of a chain that the pool has before all others, so that peers find them
        soon.
        """
        if self.disk is None or not self.disk.writing:
            return
        for key in reversed(keys):
            if key in self.pool.by_hash and key not in self.disk:
                self._unsaved[key] = None
                self._unsaved.move_to_end(key, last=False)

    def is_saved(self, keys: Seq[bytes]) -> bool:
        """Whether none of these blocks is still to be saved; some may be lost."""
        return not any(key in self._unsaved for key in keys)

    def evict(self, block: int, key: bytes) -> None:
        """Saves what a block holds before the pool uses it for something else."""
        unsaved = self._unsaved.pop(key, ...) is None and self._credit > 0
        link, stores = self._find_link(block, key), list[BlockStore]()
        if self.disk is not None and unsaved:
            stores.append(self.disk)
        if self.swap is not None and key not in self.swap:
            self.swap.advance()  # what is evicted later was used later
            stores.append(self.swap)
        if not stores or link is None:
            return
        began = self.clock()
        self.kv.read(block, self._saved)
        for store in stores:
            store.save(*link, self._saved)
        self._credit -= self.clock() - began

    def reset(self) -> None:
        """Forgets all blocks, as the pool has."""
        self._unsaved.clear()
        if self.peers is not None:
            self.peers.reset()
        for store in self.stores:
            store.clear()

    def close(self) -> None:
        """Saves what is not saved, within `AT_END` seconds, and gives up peers and files."""
        for one in (self.peers, self.server):
            if one is not None:
                one.close()
        end = self.clock() + AT_END
        while self._unsaved and self.clock() < end:
            self._save_next()
        for store in self.stores:
            store.close()

    def _note_index(self, block: int, link: ChainLink) -> None:
        self._links[block] = link
        if self.disk is not None and self.disk.writing and link.key not in self.disk:
            self._unsaved[link.key] = None

    def _find_link(self, block: int, key: bytes) -> ChainLink | None:
        """What was noted of a block; None where an interrupt came between."""
        link = self._links[block]
        return link if link is not None and link.key == key else None

    def _save_next(self) -> None:
        """Saves one block, if the pool still has it."""
        key = next(iter(self._unsaved))
        block = self.pool.by_hash.get(key)
        link = None if block is None else self._find_link(block, key)
        if self.disk is not None and block is not None and link is not None:
            self.kv.read(block, self._saved)
            self.disk.save(*link, self._saved)
            if not self.disk.writing:
                self._unsaved.clear()
        self._unsaved.pop(key, None)

    # --- blocks into the pool ---

    def restore(self, live: LiveSequences) -> None:
        """Before a step is planned: puts back what the sequences that may start in it can use.
        While others run this takes `AT_ONCE` seconds of a step; a sequence that needs more starts
        later.  One that waits for peers leaves room for itself.
        """
        passed, self.admission.held = self.admission.passed, None
        passed.clear()
        if self.peers is not None:
            self.peers.advance(live.waiting)
        self._count_peers()
        if not live.waiting:
            return
        runs = ready = any(not s.in_flight and s.computed < len(s.tokens) for s in live.running)
        end = self.clock() + AT_ONCE if runs else inf
        seats = live.free_seats()
        free = len(self.pool.free) - len(live.running)
        for seq in live.admission.choose(live.waiting, live.by_id):
            if _waits_for_leader(seq) or not live.shared.is_ready(seq):
                continue
            seats -= capacity.count_needed_seats(seq, live.by_id[seq.request.id])
            found = self.pool.match(seq.table, seq.tokens)
            free -= _count_blocks(seq, self.pool.block_size) - len(found)
            free -= self.pool.count_unheld(found)
            if seats < 0 or free < 0:
                self.admission.held = seq if passed else None
                break
            missing = self._restore(seq, found, end)
            if missing is None:
                self.admission.held = seq
                break
            if self.peers is not None and self.peers.wait_for(seq, missing):
                passed.add(seq)
            else:
                ready = True
        if self.peers is not None and passed and not ready:
            self.peers.pause()

    def _count_peers(self) -> None:
        """Reads what threads of their own have counted."""
        refused = self.peers.count_refused() if self.peers is not None else 0
        if self.server is not None:
            self.metrics.peer_sent = self.server.sent
            refused += self.server.refused
        self.metrics.peer_refused = refused

    def _restore(self, seq: Sequence, found: list[int], end: float) -> list[ChainLink] | None:
        """Puts back blocks of a sequence after those `found` in the pool; returns those that are
        stored nowhere, or None where time was up before the last.
        """
        B, keys, first = self.pool.block_size, seq.table.hashes, len(found)
        last = min((len(seq.tokens) - 1) // B, seq.first_row // B)
        begins = not seq.scheduled and seq.leader is None
        if begins and not seq.looked_up:
            self.metrics.external_queries += len(seq.tokens) - first * B
        waits = self.peers is not None and seq in self.peers.waits
        if (first < last and not waits) or not seq.looked_up:
            for store in self.stores:
                store.advance()
                store.touch(reversed(keys[:last]))
        if first < last or not seq.looked_up:
            self.pool.keep(found)
        seq.looked_up = True
        before = self._restored
        blocks, whole = self._put_back(self._list_links(seq, first, last), end)
        if blocks:
            self.pool.keep([*found, *blocks])
        self.metrics.external_hits += begins * (self._restored - before) * B
        if not whole:
            return None
        return list(self._list_links(seq, first + len(blocks), last))

    def _put_back(self, links: Iterator[ChainLink], end: float) -> tuple[list[int], bool]:
        """The blocks of these links, up to the first that is not stored; and whether the time was
        enough.  The pool may have some of them: only one before them was lost.
        """
        blocks: list[int] = []
        for link in links:
            held = self.pool.by_hash.get(link.key)
            if held is not None:
                self.pool.keep([held])  # the next that are put back must not take it
                blocks.append(held)
                continue
            if not any(link.key in source for source in self._sources):
                break
            if blocks and self.clock() >= end:
                return blocks, False
            if not any(source.load(link.key, self._loaded) for source in self._sources):
                break
            block = self.pool.take()
            self.kv.write(block, self._loaded)
            self.pool.add(block, link)
            self._restored += 1
            blocks.append(block)
        return blocks, True

    def _list_links(self, seq: Sequence, first: int, last: int) -> Iterator[ChainLink]:
        keys: Seq[bytes] = seq.table.hashes
        for i in range(first, last):
            yield ChainLink(keys[i], keys[i - 1] if i else seq.table.root, i)


class HeldAdmission:
    """Another policy, of which a sequence whose blocks are being put back is held, and those after
    it; those that wait for blocks of peers are passed over.
    """

    def __init__(self, policy: Admission) -> None:
        self.policy = policy
        self.held: Sequence | None = None
        self.passed: set[Sequence] = set()

    def choose(self, waiting: Seq[Sequence], live: Live) -> Seq[Sequence]:
        chosen, held, passed = self.policy.choose(waiting, live), self.held, self.passed
        if held is None and not passed:
            return chosen
        return [s for s in takewhile(lambda seq: seq is not held, chosen) if s not in passed]


def _count_blocks(seq: Sequence, block_size: int) -> int:
    """Blocks of all known tokens."""
    return -(-len(seq.tokens) // block_size)


def _waits_for_leader(seq: Sequence) -> bool:
    """Whether a choice is to share the blocks of its leader."""
    leader = seq.leader
    return leader is not None and leader.state is not SequenceState.FINISHED and not seq.scheduled
