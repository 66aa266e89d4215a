"""What ranks of this machine share, measured now: its bandwidth by NUMA nodes, its operations a
second, and exchanges between two ranks.

Invariant: where several nodes have memory of their own, each rank is taken to stay on one of them,
as `parallel.numa` binds it.
"""

from collections.abc import Collection, Sequence

from flyweight.bench.limits import LimitSampler
from flyweight.parallel.numa import stay_on
from flyweight.planning.calibration import LocalEngine
from flyweight.planning.rank_cost import SharedLimits

SAMPLES = 3  # of the limits


def sample_shared_limits(
    engine: LocalEngine, ranks: int, nodes: Sequence[Collection[int]]
) -> SharedLimits:
    """About a second.  Samples are taken one after another, as each fills memory of its own."""
    threads = engine.ops.threads
    whole = _make_sampler(engine, threads).sample_best(SAMPLES)
    alone = _make_sampler(engine, max(1, threads // ranks)).sample_best(SAMPLES)
    used = min(len(nodes), ranks)
    if used == 1:
        return SharedLimits(whole, alone, whole.read)
    with stay_on(nodes[0]):
        own = _make_sampler(engine, max(1, threads // used)).sample_best(SAMPLES)
    return SharedLimits(whole, alone, max(whole.read, used * own.read))


def _make_sampler(engine: LocalEngine, threads: int) -> LimitSampler:
    return LimitSampler(threads, engine.ops.isa, engine.weight_bytes)
