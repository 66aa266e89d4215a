"""Where the engines of a server run: in one engine process, or as replicas on Ray.

Invariant: replicas of this machine together take the threads and the memory of one engine.  Ray is
imported only where replicas are requested.
"""

from collections.abc import Callable
from dataclasses import replace

from flyweight.config import Settings, parse_bytes
from flyweight.errors import ConfigError
from flyweight.parallel.cluster import ReplicaPlan
from flyweight.plan.machine import read_machine
from flyweight.server.engine_host import EngineHost, Host
from flyweight.server.engine_process import EngineProcess
from flyweight.server.model_options import ModelOptions
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.settings import ServerSettings
from flyweight.validation.replicas import find_replica_bounds, find_replica_option


def make_host(
    model: ModelOptions,
    server: ServerSettings,
    engine: EngineProcess | None,
    on_failure: Callable[[str], None],
) -> Host:
    """`engine` is a process that waits for its first message; without one there are replicas of the
    model.
    """
    if engine is not None:
        return EngineHost(on_failure, engine)
    try:
        from flyweight.parallel.ray_serve import RayCluster
    except ImportError as error:  # Ray without Serve, or what that needs
        raise ConfigError(
            f"needs Ray Serve: {error}", find_replica_option(server),
            hint="pip install 'flyweight[distributed]'",
        ) from None  # fmt: skip
    from flyweight.server.replicas.engine_replica import EngineReplica

    plan = plan_replicas(model.settings, server)
    return ReplicaHost(RayCluster(EngineReplica, plan), plan, server.routing, on_failure)


def plan_replicas(settings: Settings, server: ServerSettings) -> ReplicaPlan:
    """How many replicas there are, and what each reserves."""
    least, most = find_replica_bounds(server)
    cores = settings.threads or 0 if server.ray_address else 1
    return ReplicaPlan(
        least, most, server.ray_address, cores, server.request_timeout, server.engine_timeout,
        max(1, settings.max_num_seqs // 2),
    )  # fmt: skip


def divide_machine(model: ModelOptions, server: ServerSettings) -> ModelOptions:
    """The options of one replica of this machine: its part of threads and memory."""
    _, most = find_replica_bounds(server)
    if server.ray_address or most == 1:
        return model
    settings, machine = model.settings, read_machine()
    divided = replace(
        settings,
        threads=max(1, (settings.threads or machine.cores) // most),
        memory_limit=parse_bytes(str(settings.memory_limit), machine.total) // most,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes // most,
    )
    return replace(model, settings=divided)
