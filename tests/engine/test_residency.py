"""How long blocks stay in K/V memory, as a sample of them shows it."""

from flyweight.kv.blocks import BlockPool, Table
from flyweight.kv.residency import ACCESSES, MOST, Residency

B = 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(share: float = 1.0, blocks: int = 2) -> tuple[BlockPool, Residency, Clock]:
    clock = Clock()
    residency = Residency(share, clock)
    return BlockPool(blocks, B, residency=residency), residency, clock


def used(pool: BlockPool, tokens: list[int]) -> Table:
    """A table that holds these tokens, whoever computed them first."""
    table = Table(b"root")
    pool.share(table, pool.match(table, tokens))
    pool.grow(table, len(table.blocks) * B, len(tokens))
    pool.publish(table, tokens, len(tokens))
    return table


def test_from_taken_to_evicted_and_from_use_to_use() -> None:
    pool, residency, clock = watched()
    for clock.now in (1.0, 2.0, 5.0):
        pool.release(used(pool, [1, 2, 3]))
    assert residency.take() == []  # nothing has made room yet
    clock.now = 9.0
    used(pool, [7, 8, 9])
    (stay,) = residency.take()  # the second block was never full, and so never to be found
    assert stay == (8.0, 4.0, (3.0,))
    assert residency.take() == []


def test_a_block_without_reuse_is_idle_since_its_allocation() -> None:
    pool, residency, clock = watched(blocks=1)
    pool.release(used(pool, [1, 2]))
    clock.now = 6.0
    pool.release(used(pool, [3, 4]))
    assert residency.take() == [(6.0, 6.0, ())]


def test_the_newest_uses_are_remembered() -> None:
    pool, residency, clock = watched(blocks=2)
    for i in range(ACCESSES + 6):
        clock.now = float(i * i)
        pool.release(used(pool, [1, 2, 3]))
    used(pool, [7, 8, 9])
    ((_, _, gaps),) = residency.take()
    last = ACCESSES + 5
    assert gaps == tuple(float(2 * i - 1) for i in range(last - ACCESSES + 2, last + 1))


def test_a_share_of_the_blocks_is_watched_and_no_more_is_kept_than_most() -> None:
    for share, least, most in ((0.1, 300, 500), (1.0, MOST, MOST)):
        pool, residency, _ = watched(share, blocks=1)
        for i in range(4000):
            pool.release(used(pool, [i, i]))
        assert least <= len(residency.take()) <= most


def test_what_is_dropped_at_once_is_not_reported() -> None:
    pool, residency, clock = watched(blocks=1)
    pool.release(used(pool, [1, 2]))
    pool.forget()
    clock.now = 3.0
    pool.release(used(pool, [3, 4]))
    assert residency.take() == []
    pool.recover()
    used(pool, [5, 6])
    assert residency.take() == []
