"""The NUMA nodes of this machine that ranks run on.

A rank reads its part of the weights in every step, so it stays on the cores of one node.  Linux
places a page on the node of the thread that first writes it, so the rank's memory is there too.
Ranks share a node where there are fewer nodes than ranks; where there are more, a rank has several.

Invariant: a machine with one node, or a model of one rank, binds nothing.  Knows no model.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

Cores = frozenset[int]
UNBOUND: Cores = frozenset()


def assign_cores(nodes: Sequence[Cores], ranks: int) -> list[Cores]:
    """The cores of each rank, given those of each node; `UNBOUND` where ranks are not bound."""
    count = len(nodes)
    if count == 1 or ranks == 1:
        return [UNBOUND] * ranks
    if ranks >= count:
        return [nodes[rank * count // ranks] for rank in range(ranks)]
    ends = [rank * count // ranks for rank in range(ranks + 1)]
    return [UNBOUND.union(*nodes[ends[i] : ends[i + 1]]) for i in range(ranks)]


def count_threads(cores: Sequence[Cores]) -> int | None:
    """The threads that every rank can have without sharing a core; None where none is bound."""
    shares = [len(own) // cores.count(own) for own in cores if own]
    return max(1, min(shares)) if shares else None


@contextmanager
def stay_on(cores: Collection[int]) -> Iterator[None]:
    """This thread, and threads that it starts meanwhile, run on these cores alone; anywhere where
    there are none.  The thread itself has its former cores again afterwards.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
