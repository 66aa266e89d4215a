"""Ranks and NUMA nodes: which cores each rank has, and that no thread stays bound afterwards."""

import os
from pathlib import Path
from threading import Thread

import pytest

from flyweight.config import Settings
from flyweight.parallel import sharding
from flyweight.parallel.numa import UNBOUND, assign_cores, count_threads, stay_on
from flyweight.plan.machine import list_nodes

TWO = [frozenset(range(4)), frozenset(range(4, 8))]
FOUR = [frozenset({2 * i, 2 * i + 1}) for i in range(4)]


def write_nodes(root: Path, nodes: dict[int, str], memory: str) -> Path:
    """What the kernel says of nodes, below `root`."""
    folder = root / "sys/devices/system/node"
    for number, cores in nodes.items():
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}/cpulist").write_text(f"{cores}\n")
    (folder / "has_memory").write_text(f"{memory}\n")
    return root


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What this thread is bound to, on a machine of eight cores."""
    calls: list[set[int]] = [set(range(8))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: calls[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: calls.append(set(cores)))
    return calls


def test_a_rank_stays_on_a_node(tmp_path: Path, bound: list[set[int]]) -> None:
    nodes = list_nodes(write_nodes(tmp_path, {0: "0-1,4-5", 1: "2-3,6-7"}, "0-1"))
    assert assign_cores(nodes, 2) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert len(bound) == 1, "nothing is bound by asking"


def test_nodes_without_memory_or_cores_have_no_rank(tmp_path: Path, bound: list[set[int]]) -> None:
    """Memory on a card has no cores; cores of a socket without memory read another's."""
    nodes = list_nodes(write_nodes(tmp_path, {0: "0-3", 1: "4-7", 2: ""}, "0,2"))
    assert assign_cores(nodes, 2) == [UNBOUND, UNBOUND]
    assert len(bound) == 1


@pytest.mark.parametrize(
    ("nodes", "ranks", "expected"),
    [
        (TWO, 4, [TWO[0], TWO[0], TWO[1], TWO[1]]),
        (TWO, 3, [TWO[0], TWO[0], TWO[1]]),
        (FOUR, 2, [FOUR[0] | FOUR[1], FOUR[2] | FOUR[3]]),
        (FOUR, 4, FOUR),
        (TWO, 1, [UNBOUND]),
        (TWO[:1], 4, [UNBOUND] * 4),
    ],
)
def test_ranks_are_spread_evenly_over_nodes(
    nodes: list[frozenset[int]], ranks: int, expected: list[frozenset[int]]
) -> None:
    """Neighbours share a node; where there are more nodes than ranks, all cores are used."""
    assert assign_cores(nodes, ranks) == expected


@pytest.mark.parametrize(
    ("nodes", "ranks", "threads"),
    [(TWO, 2, 4), (TWO, 4, 2), (TWO, 3, 2), (FOUR, 2, 4), (TWO[:1], 2, None), (FOUR, 16, 1)],
)
def test_threads_of_a_rank_have_a_core_each(
    nodes: list[frozenset[int]], ranks: int, threads: int | None
) -> None:
    assert count_threads(assign_cores(nodes, ranks)) == threads


def test_threads_are_those_of_the_smallest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are given."""
    monkeypatch.setattr(sharding, "import_collectives", lambda: None)
    uneven = assign_cores([frozenset(range(6)), frozenset(range(6, 8))], 2)
    plain = Settings.of(model="m", tensor_parallel_size=2)
    assert sharding.divide_cores(plain, 8, uneven).threads == 2
    assert sharding.divide_cores(plain, 8, [UNBOUND] * 2).threads == 4
    given = Settings.of(model="m", tensor_parallel_size=2, threads=6)
    assert sharding.divide_cores(given, 8, uneven).threads == 3


def test_a_thread_has_its_cores_again_also_after_an_error(bound: list[set[int]]) -> None:
    with pytest.raises(KeyError), stay_on({2, 3}):
        raise KeyError
    assert bound == [set(range(8)), {2, 3}, set(range(8))]


def test_no_cores_bind_nothing(bound: list[set[int]]) -> None:
    with stay_on(UNBOUND):
        pass
    assert len(bound) == 1


def test_threads_that_start_meanwhile_stay() -> None:
    """For real: what a rank computes with is started while its own thread is bound."""
    everywhere = os.sched_getaffinity(0)
    first = min(everywhere)
    seen: list[set[int]] = []
    with stay_on({first}):
        child = Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        child.start()
        child.join()
    assert seen == [{first}] and os.sched_getaffinity(0) == everywhere
