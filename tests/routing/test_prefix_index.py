"""The index of a replica's blocks: bounded, and without holes."""

from hypothesis import given
from hypothesis import strategies as st

from flyweight.routing.prefix_index import PrefixIndex

# A chain is a path from the root of a tree: each key names all steps before it.
PATHS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=40)


def make_chain(path: list[int]) -> list[bytes]:
    return [bytes(path[: i + 1]) for i in range(len(path))]


def test_the_end_of_the_oldest_chain_is_evicted_first() -> None:
    index = PrefixIndex(5)
    old, new = make_chain([0, 0, 0]), make_chain([1, 1, 1])
    index.use(old)
    index.use(new)
    assert (len(index), index.count_prefix(old), index.count_prefix(new)) == (5, 2, 3)
    index.use(old[:1])  # now the newest
    index.use(make_chain([2, 2]))
    assert (index.count_prefix(old), index.count_prefix(new)) == (1, 2)


def test_a_chain_above_the_bound_is_held_as_far_as_it_fits() -> None:
    index = PrefixIndex(3)
    index.use(make_chain([0] * 8))
    assert (len(index), index.count_prefix(make_chain([0] * 8))) == (3, 3)
    empty = PrefixIndex(0)
    empty.use(make_chain([0]))
    assert (len(empty), empty.count_prefix(make_chain([0]))) == (0, 0)


@given(st.integers(0, 20), PATHS)
def test_the_bound_and_no_holes(blocks: int, paths: list[list[int]]) -> None:
    """Never more keys than blocks, no key without those before it, which were used as often or
    more, and counts are those of a search from the first key on.
    """
    index, used = PrefixIndex(blocks), set[bytes]()
    for path in paths:
        chain = make_chain(path)
        used.update(chain)
        index.use(chain)
        held = {key for key in used if index.count_prefix([key])}
        assert len(index) == len(held) <= blocks
        assert all(len(key) == 1 or key[:-1] in held for key in held)
        assert index.count_prefix(chain) == min(blocks, len(chain))
        for other in paths:
            chain = make_chain(other)
            first = next((i for i, key in enumerate(chain) if key not in held), len(chain))
            assert index.count_prefix(chain) == first
            often = [index._uses[key] >= 2 for key in chain[:first]]
            assert often == sorted(often, reverse=True)
            assert index.count_popular(chain, first, 2) == sum(often)
