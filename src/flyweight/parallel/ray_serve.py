"""Replicas on a Ray cluster: Ray Serve places, drains and scales them.

Invariant: a cluster that was started here ends with the server, and of an existing one its
application does.  Ray writes nothing to the server's stderr.  Knows no message: frames are bytes.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

from flyweight.config import set_unset_variables
from flyweight.errors import ConfigError, EngineError
from flyweight.parallel.cluster import GONE, ReplicaPlan
from flyweight.parallel.cluster_errors import CallError, describe_error, explain_errors

QUIET = {  # read by Ray when it is imported
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
set_unset_variables(QUIET)

import ray  # noqa: E402
from ray import serve  # noqa: E402
from ray.exceptions import RayTaskError  # noqa: E402
from ray.serve.config import AutoscalingConfig, RequestRouterConfig  # noqa: E402
from ray.serve.exceptions import RayServeException  # noqa: E402
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

from flyweight.parallel.ray_access import (  # noqa: E402
    check_authentication,
    check_cluster,
    on_loopback,
)
from flyweight.parallel.ray_actor import (  # noqa: E402
    MakeProgram,
    NamedReplicaRouter,
    ReplicaActor,
    ReplicaRegistry,
)
from flyweight.parallel.ray_channel import Inlet  # noqa: E402

REACH = 5.0  # seconds to reach an existing cluster
HEALTH = 2.0  # seconds between two checks of a replica
MOST_CALLS = 100_000  # at a time on one replica: the engine's own queue holds them
STORE = 100 << 20  # bytes of Ray's object store on a cluster of ours, which holds nothing large
CHANNELS = 1  # calls of a replica that are no requests: Ray Serve counts them too, so that it
# ends a replica when there is one request fewer than the target of the others allows
Result = TypeVar("Result")


class RayCluster:
    """See `Cluster`.  `make` makes what runs in a replica's process, where it is imported."""

    def __init__(self, make: MakeProgram, plan: ReplicaPlan) -> None:
        self.make, self.plan = make, plan
        self.app = f"flyweight-{secrets.token_hex(4)}"
        self._registry: Any = None
        self._handle: Any = None
        self._inlets: dict[str, Inlet] = {}  # by replica
        self._calls = 0

    async def start(self, setup: bytes) -> None:
        await self._call(lambda: self._start(setup))

    async def list(self) -> Mapping[str, bytes]:
        with explain_errors():
            found: dict[str, bytes] = await self._registry.list.remote()
        return found

    async def compute(self, name: str, frame: bytes) -> AsyncIterator[bytes]:
        inlet = self._find_inlet(name)
        self._calls += 1
        number, begun = self._calls, False
        call = self._handle.options(method_name="compute").remote(name, number, frame)
        try:
            async with aclosing(inlet.receive(number, call)) as frames:
                async for data in frames:
                    begun = True
                    yield data
        except RayTaskError as error:  # raised by our own code there; its actor goes on
            raise CallError(type(error.cause).__name__) from None
        except RayServeException:  # of Serve here: the call has reached no replica
            if begun:
                raise
            yield GONE

    def _find_inlet(self, name: str) -> Inlet:
        if name not in self._inlets:
            self._inlets = {name: one for name, one in self._inlets.items() if not one.idle}
            self._inlets[name] = Inlet(partial(self._open_channel, name))
        return self._inlets[name]

    async def _open_channel(self, name: str) -> AsyncGenerator[bytes]:
        try:
            channel = self._handle.options(method_name="stream", stream=True).remote(name)
            async for item in channel:
                yield item
        except RayTaskError as error:  # of the channel, not of a request
            raise EngineError(describe_error(error)) from None

    async def tell(self, name: str, frame: bytes) -> bytes:
        with explain_errors():
            found: bytes = await self._handle.options(method_name="tell").remote(name, frame)
        return found

    async def drop(self, name: str) -> None:
        with explain_errors():
            await self._registry.forget.remote(name)
            actor = await self._registry.find_actor.remote(name)
        if actor:
            await self._call(lambda: self._kill(actor))

    async def stop(self) -> None:
        await self._call(lambda: serve.delete(self.app))

    async def close(self) -> None:
        for one in self._inlets.values():
            one.close()
        await asyncio.to_thread(self._close)

    # --- on a thread, as Ray's calls block ---

    async def _call(self, work: Callable[[], Result]) -> Result:
        """Raises `EngineError` where Ray fails, in whatever way."""
        with explain_errors():
            return await asyncio.to_thread(work)

    def _start(self, setup: bytes) -> None:
        if self._registry is None:
            self._connect()
            self._registry = self._start_registry()
            serve.start(proxy_location="Disabled")
        options = self._choose_options()
        deployment = serve.deployment(ReplicaActor, name="replica", **options)
        patience = self.plan.engine_patience
        target = deployment.bind(self.make, setup, patience, self.app, self._registry)
        run = serve.RunTarget(target=target, name=self.app, route_prefix=None)
        (self._handle,) = serve.run_many([run], wait_for_applications_running=False)

    def _start_registry(self) -> Any:
        """On the server's own machine: replicas end when it is gone."""
        here = ray.get_runtime_context().get_node_id()
        place = NodeAffinitySchedulingStrategy(here, soft=False)
        return ray.remote(num_cpus=0, scheduling_strategy=place)(ReplicaRegistry).remote()

    def _choose_options(self) -> dict[str, Any]:
        plan = self.plan
        options: dict[str, Any] = {
            "max_ongoing_requests": MOST_CALLS,
            "graceful_shutdown_timeout_s": plan.drain,
            "graceful_shutdown_wait_loop_s": 0.2,
            "health_check_period_s": HEALTH,
            "health_check_timeout_s": plan.patience,
            "ray_actor_options": {"num_cpus": plan.cores or 1},
            "request_router_config": RequestRouterConfig(request_router_class=NamedReplicaRouter),
        }
        if not plan.cores:
            options["max_replicas_per_node"] = 1
        if plan.least == plan.most:
            options["num_replicas"] = plan.least
        else:
            options["autoscaling_config"] = AutoscalingConfig(
                min_replicas=plan.least, max_replicas=plan.most,
                target_ongoing_requests=plan.target + CHANNELS,
            )  # fmt: skip
        return options

    def _connect(self) -> None:
        """Joins the cluster, or starts one.  Raises `ConfigError`."""
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        try:
            if self.plan.address:
                self._join(quiet)
                return
            cores = self.plan.most * max(1, self.plan.cores)
            with on_loopback():
                ray.init(
                    "local", num_cpus=cores, object_store_memory=STORE, include_dashboard=False,
                    **quiet,
                )  # fmt: skip
        except ConfigError:
            ray.shutdown()
            raise
        except Exception as error:  # of many kinds, `Exception` itself among them
            ray.shutdown()
            if self.plan.address:
                raise self._refuse(describe_error(error)) from None
            raise ConfigError(f"Ray could not be started: {describe_error(error)}") from None

    def _join(self, quiet: dict[str, Any]) -> None:
        check_authentication(self.plan.address, "--ray-address", self.plan.address)
        self._reach()
        check_cluster(self.plan.address, "--ray-address", self.plan.address)
        ray.init(self.plan.address, **quiet)
        found = ray.get_runtime_context().gcs_address  # "auto" and loopback may lead off loopback
        if found != self.plan.address:
            check_cluster(found, "--ray-address", self.plan.address)

    def _reach(self) -> None:
        """Whether anything listens at the address; Ray itself would try for a minute."""
        host, _, port = self.plan.address.rpartition(":")
        if not host:  # "auto"
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
        except (OSError, OverflowError) as error:
            raise self._refuse(str(error)) from None

    def _refuse(self, problem: str) -> ConfigError:
        return ConfigError(
            f": no Ray cluster answers there: {problem}", "--ray-address",
            value=self.plan.address, hint="start one with: ray start --head",
        )  # fmt: skip

    def _kill(self, actor: str) -> None:
        with suppress(ValueError):  # it has ended
            ray.kill(ray.get_actor(actor, namespace="serve"))

    def _close(self) -> None:
        if not ray.is_initialized():
            return
        if self.plan.address and self._registry is not None:
            with suppress(Exception):  # the cluster may be gone
                serve.delete(self.app)
        ray.shutdown()
