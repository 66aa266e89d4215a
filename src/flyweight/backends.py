"""The op table that settings request, and the machine as it sees it.

Invariant: a backend's packages are imported only where it is requested.  Knows no model.
"""

from flyweight.config import Settings
from flyweight.describe import choose_activations, count_allowed_bytes
from flyweight.errors import ConfigError
from flyweight.ops.base import OnDevice, Ops
from flyweight.plan.machine import Machine, read_machine
from flyweight.resources import ProcessResources


def choose_backend(
    settings: Settings, cores: int, resources: ProcessResources | None = None, local_rank: int = 0
) -> Ops:
    """The requested op table: native kernels, the NumPy reference, or a GPU, whose number is
    `local_rank` where there are several ranks.  Threads are shared with the process's other
    engines.
    """
    if settings.backend == "reference":
        from flyweight.ops.reference import ReferenceOps

        return ReferenceOps(settings.activations)
    if settings.backend == "cuda":
        return _make_cuda(settings, local_rank)
    from flyweight.ops.cpu import CpuOps

    threads, activations = settings.threads or cores, settings.activations
    if resources is None:
        return CpuOps(threads, settings.isa, activations)
    key = threads, settings.isa
    ops = CpuOps(threads, settings.isa, activations, resources.pools.get(key))
    resources.pools[key] = ops.pool
    return ops


def _make_cuda(settings: Settings, local_rank: int) -> Ops:
    """The CUDA backend.  Several ranks compute without graphs: their collectives were never
    captured on a GPU.
    """
    divided = settings.ranks > 1
    try:
        from flyweight.ops.cuda import CudaOps
        from flyweight.ops.cuda.device import find_device
        from flyweight.ops.cuda.kv import check_stored
    except (ImportError, OSError) as missing:
        raise ConfigError(
            _describe_missing(missing),
            "backend",
            value="cuda",
            hint="pip install 'flyweight[cuda]', or backend = cpu",
        ) from missing
    if settings.kv_cache_dtype != "auto":
        check_stored(settings.kv_cache_dtype)  # before anything is loaded
    return CudaOps(
        str(find_device(local_rank if divided else None)),
        choose_activations(settings),
        deterministic=settings.deterministic is True,
        graphs=not settings.enforce_eager and not divided,
    )


def _describe_missing(missing: ImportError | OSError) -> str:
    """Why torch or Triton cannot be imported: not installed, or a library of theirs is missing."""
    if isinstance(missing, ModuleNotFoundError):
        return f"needs {missing.name}, which is not installed"
    first = str(missing).partition("\n")[0]
    return f"needs torch and triton, which cannot be imported: {first}"


def read_place(settings: Settings, ops: Ops) -> Machine:
    """The cores of this machine, and the memory that the backend computes in: of several ranks'
    GPUs the one that leaves a plan the least room.
    """
    here, memory = read_machine(), ops.read_memory()
    if memory is None:
        return here
    memories = [memory]
    if settings.local_ranks > 1 and isinstance(ops, OnDevice):
        memories = ops.read_memories(settings.local_ranks)
    places = [Machine(here.cores, *one, device=True) for one in memories]
    return min(places, key=lambda one: count_allowed_bytes(settings, one, one.held) - one.held)
