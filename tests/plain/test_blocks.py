"""The block pool alone: no arrays, no sequences."""

import random
import subprocess
import sys

import pytest

from flyweight.kv.blocks import BlockPool, Copy, Table, make_chain_key, make_root_key

ROOT = make_root_key("", "", "model")


def filled(pool: BlockPool, tokens: list[int], root: bytes = ROOT) -> Table:
    """A table that holds and has published all of `tokens`."""
    table = Table(root)
    found = pool.match(table, tokens)
    pool.share(table, found)
    pool.grow(table, len(found) * pool.block_size, len(tokens))
    pool.publish(table, tokens, len(tokens))
    return table


def test_keys_name_every_token_before_them():
    first = make_chain_key(ROOT, [1, 2])
    assert make_chain_key(ROOT, [1, 2]) == first != make_chain_key(ROOT, [2, 1])
    assert make_chain_key(first, [3]) != make_chain_key(make_chain_key(ROOT, [1, 4]), [3])
    assert len(first) == 32


@pytest.mark.parametrize(
    "other", [("b", "", "model"), ("", "b", "model"), ("", "", "b"), ("a", "bmodel", "")]
)
def test_roots_differ_by_salt_adapter_and_model(other):
    assert make_root_key(*other) != make_root_key("a", "b", "model")
    pool = BlockPool(8, 2)
    tokens = [1, 2, 3, 4, 5]
    filled(pool, tokens)
    assert pool.match(Table(make_root_key(*other)), tokens) == []


def test_a_match_leaves_one_token_to_compute():
    pool = BlockPool(8, 2)
    table = filled(pool, [1, 2, 3, 4])
    assert pool.match(Table(ROOT), [1, 2, 3, 4]) == list(table.blocks[:1])
    assert pool.match(Table(ROOT), [1, 2, 3, 4, 9]) == list(table.blocks)
    assert pool.match(Table(ROOT), [1, 2, 9, 4, 9]) == list(table.blocks[:1])


def test_cached_runs_are_the_free_blocks_with_keys():
    pool = BlockPool(8, 2)
    assert pool.list_cached_runs() == []
    table = filled(pool, [1, 2, 3, 4, 5, 6])
    other = filled(pool, [7, 8])
    assert pool.list_cached_runs() == [], "held blocks are not free"
    pool.release(table)
    assert pool.list_cached_runs() == [(0, 3)]
    pool.grow(other, 2, 12)  # takes the four blocks without a key, then the first table's last
    pool.release(other)
    assert pool.list_cached_runs() == [(0, 2), (3, 1)]


def test_only_full_blocks_below_computed_are_published():
    pool = BlockPool(8, 2)
    table = Table(ROOT)
    pool.grow(table, 0, 6)
    pool.publish(table, [1, 2, 3, 4, 5, 6], 3)
    assert pool.match(Table(ROOT), [1, 2, 3, 4, 5, 6]) == list(table.blocks[:1])
    pool.check_integrity([table])


def test_released_blocks_are_found_until_they_are_taken_suffixes_first():
    pool = BlockPool(4, 2)
    lost = []
    pool.on_evict = lambda block, key: lost.append(block)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    table = filled(pool, tokens)
    held = list(table.blocks)
    pool.release(table)
    assert pool.match(Table(ROOT), tokens) == held[:3]
    other = Table(ROOT)
    pool.grow(other, 0, 4)  # the partial block goes first: there is nothing to find in it
    assert lost == [held[2]]
    assert pool.match(Table(ROOT), tokens) == held[:2]
    pool.check_integrity([other])


def test_the_oldest_release_is_taken_first():
    pool = BlockPool(4, 1)
    old, new = filled(pool, [1, 2]), filled(pool, [3, 4])
    pool.release(old)
    pool.release(new)
    pool.grow(Table(ROOT), 0, 2)
    assert pool.match(Table(ROOT), [1, 9]) == []
    assert len(pool.match(Table(ROOT), [3, 4, 9])) == 2


def test_a_fork_copies_the_block_it_writes_to():
    pool = BlockPool(8, 4)
    table = Table(ROOT)
    pool.grow(table, 0, 6)
    fork = Table(ROOT)
    pool.share(fork, table.blocks)
    assert pool.count_needed(fork, 6, 7) == 1
    copy = pool.grow(fork, 6, 7)
    assert copy == Copy(table.blocks[1], fork.blocks[1], 2)
    assert fork.blocks[0] == table.blocks[0]
    assert pool.grow(table, 6, 7) is None, "the last holder writes in place"
    pool.check_integrity([table, fork])
    pool.release(table)
    pool.check_integrity([fork])
    assert pool.count_unheld(fork.blocks) == 0


def test_integrity_notices():
    pool = BlockPool(4, 1)
    table = filled(pool, [1, 2])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])
    pool.by_hash.clear()
    with pytest.raises(AssertionError, match="index differs"):
        pool.check_integrity([table])


def test_random_use_keeps_integrity_and_contents():
    """Tables come, share, grow and go; what a match returns always holds those tokens."""
    rng = random.Random(0)
    pool = BlockPool(24, 3)
    holds: dict[int, tuple[bytes, list[int]]] = {}
    live: list[Table] = []
    for _ in range(4000):
        if live and rng.random() < 0.5:
            pool.release(live.pop(rng.randrange(len(live))))
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, 12))]
        table = Table(make_root_key(rng.choice("ab"), "", ""))
        found = pool.match(table, tokens)
        for i, block in enumerate(found):
            assert holds[block] == (table.root, tokens[: 3 * i + 3])
        if -(-len(tokens) // 3) - len(found) <= len(pool.free) - pool.count_unheld(found):
            pool.share(table, found)
            pool.grow(table, 3 * len(found), len(tokens))
            for i in range(len(found), len(tokens) // 3):
                holds[table.blocks[i]] = (table.root, tokens[: 3 * i + 3])
            pool.publish(table, tokens, len(tokens))
            live.append(table)
        pool.check_integrity(live)


def test_pool_and_scheduler_need_no_array_library():
    code = (
        "import sys, flyweight.engine.scheduler, flyweight.kv.blocks;"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
