"""Items mapped by a pool of actors, with Ray Data.

Invariant: what an actor makes of an item is yielded as it is made; an item whose actor died is
mapped again from its beginning, so that results may come twice, and left out when that one died as
well.  A cluster that was started here is ended here.  Knows no model and no rows.
"""

import logging
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow
import ray
from ray import cloudpickle as pickle
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util.annotations import RayDeprecationWarning

from flyweight.errors import ConfigError, EngineError, FlyweightError
from flyweight.parallel.ray_access import check_authentication, check_cluster, on_loopback

Work = Callable[[bytes], Iterator[bytes]]
LOCAL = "local"  # a cluster of this machine, for this process
CONNECTING = 5.0  # seconds to connect to a cluster
RETRIES = 1  # of an item whose actor died: it may be the cause
STARTS = 3  # of an actor whose process ends each time before it has started
STORE = "flyweight"  # namespace in the store of a cluster
BLOCK = 16 << 10  # bytes of results that are sent together
ERRORS = {kind.__name__: kind for kind in (ConfigError, EngineError, FlyweightError)}


@dataclass(frozen=True, slots=True)
class ActorPool:
    """`replicas` actors, of `cpus` each, on the cluster at `address`; empty: on this machine.  Each
    has up to `items` items at a time, which are all lost with it.
    """

    replicas: int
    address: str = ""
    cpus: float = 1.0
    items: int = 2


class _Actor:
    """What runs in a process of Ray.  An error of a user's is data: Ray would start an actor that
    fails again and again, and print its traceback.
    """

    def __init__(self, make: bytes) -> None:
        """`make` is pickled, so that what it imports is a part of the counted start."""
        self._work: Work | None = None
        self._error: FlyweightError | None = None
        try:
            with _count_starts():
                self._work = pickle.loads(make)()
        except FlyweightError as error:
            self._error = error

    def __call__(self, batch: pyarrow.Table) -> Iterator[pyarrow.Table]:
        if self._work is None:
            yield _make_table([b""], self._error)
            return
        try:
            for item in batch.column("item").to_pylist():
                for part in self._work(item):
                    yield _make_table([part])
        except FlyweightError as error:
            yield _make_table([b""], error)
        except Exception as error:
            yield _make_table([b""], EngineError(f"a replica failed: {first_line(error)}"))


@contextmanager
def _count_starts() -> Iterator[None]:
    """Raises `EngineError` where the process of this actor has ended in each of its last starts.
    Ray starts it again without end, and would not report it.  Its store has the count.
    """
    key = ray.get_runtime_context().get_actor_id()
    ended = int(_internal_kv_get(key, namespace=STORE) or 0)
    if ended >= STARTS:
        raise EngineError(
            f"a replica's process on {socket.gethostname()} ended {STARTS} times while it started; "
            "there may be too little memory, or a crash in native code"
        )
    _internal_kv_put(key, str(ended + 1), namespace=STORE)
    try:
        yield
    finally:  # it has not ended
        _internal_kv_del(key, namespace=STORE)


def map_in_actors(
    items: Sequence[bytes], make: Callable[[int], Callable[[], Work]], pool: ActorPool
) -> Iterator[bytes]:
    """What actors make of items, in any order.  `make` is called with the most replicas that share
    a machine; what it returns makes the function that an actor maps items with.  Raises
    `ConfigError` where there is no cluster, and the `FlyweightError` that an actor could not start
    for; `EngineError` where its process ended each time that it started.
    """
    with connect(pool):
        data = _map(items, make(count_sharing(ray.nodes(), pool)), pool)
        # its errors are raised as well, and have a traceback in the log
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        with _explain_errors():
            blocks = data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
            for block in blocks:
                for row in block.to_pylist():
                    if row["kind"]:
                        raise ERRORS[row["kind"]](row["text"])
                    yield row["result"]


def count_sharing(nodes: Sequence[Mapping[str, Any]], pool: ActorPool) -> int:
    """The most replicas on one machine, where Ray spreads them evenly over those with the CPUs for
    them; a head without CPUs runs none.
    """
    found = [int(one["Resources"].get("CPU", 0) // pool.cpus) for one in nodes if one["Alive"]]
    most = min(pool.replicas, max(found, default=0) or pool.replicas)
    enough = (n for n in range(1, most) if sum(min(n, one) for one in found) >= pool.replicas)
    return next(enough, most)


def _map(items: Sequence[bytes], make: Callable[[], Work], pool: ActorPool) -> Dataset:
    with warnings.catch_warnings():  # Ray 2.60 to 2.63 warn of the last two options
        warnings.simplefilter("ignore", RayDeprecationWarning)
        return ray.data.from_items(list(items), override_num_blocks=len(items)).map_batches(
            _Actor,
            fn_constructor_args=(pickle.dumps(make),),
            batch_size=1,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=pool.replicas, max_tasks_in_flight_per_actor=pool.items),
            num_cpus=pool.cpus,
            max_restarts=-1,  # without a living actor it would wait; `_count_starts` bounds them
            max_task_retries=RETRIES,
        )


@contextmanager
def connect(pool: ActorPool) -> Iterator[None]:
    """Ray is connected meanwhile.  Raises `ConfigError` where there is no cluster, or the program
    is connected to one.
    """
    if ray.is_initialized():
        hint = "call ray.shutdown() first, or run the batch in another process"
        raise ConfigError("this program is already connected to Ray", hint=hint)
    local: dict[str, Any] = {}
    if not pool.address:
        cpus = max(1, round(pool.replicas * pool.cpus))
        local = {"num_cpus": cpus, "include_dashboard": False}
    check_authentication(pool.address, "ray_address", pool.address)
    check_reachable(pool.address)
    check_cluster(pool.address, "ray_address", pool.address)
    try:
        with nullcontext() if pool.address else on_loopback():
            ray.init(
                address=pool.address or LOCAL, logging_level=logging.ERROR, log_to_driver=False,
                **local,
            )  # fmt: skip
        _check_joined(pool.address)
    except ConfigError:
        raise
    except Exception as error:  # of many kinds; where a node is slow to start, `Exception` itself
        ray.shutdown()
        problem = f": no Ray cluster can be reached: {first_line(error)}"
        raise ConfigError(problem, "ray_address", value=pool.address or LOCAL) from None
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = BLOCK
    context.max_errored_blocks = -1  # of actors that died; other errors are data
    try:
        yield
    finally:
        ray.shutdown()


def _check_joined(address: str) -> None:
    """Raises `ConfigError`, disconnected, where `auto` or loopback led to a cluster that is not."""
    try:
        found = ray.get_runtime_context().gcs_address
        if address and found != address:
            check_cluster(found, "ray_address", address)
    except ConfigError:
        ray.shutdown()
        raise


def check_reachable(address: str) -> None:
    """Raises `ConfigError` where nothing is at HOST:PORT: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), CONNECTING).close()
    except (OSError, OverflowError) as error:
        problem = f": no Ray cluster can be reached: {first_line(error)}"
        raise ConfigError(problem, "ray_address", value=address) from None


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Errors of Ray become one line; one of ours in their chain is raised in their place."""
    try:
        yield
    except FlyweightError:
        raise
    except Exception as error:
        seen: BaseException | None = error
        while seen is not None:
            cause = getattr(seen, "cause", None) or seen.__cause__ or seen.__context__
            if isinstance(cause, FlyweightError):
                raise type(cause)(**cause.data) from None
            if isinstance(seen, RayError) or cause is None:
                break
            seen = cause
        raise EngineError(f"a replica failed: {first_line(seen or error)}") from None


def first_line(error: BaseException) -> str:
    """Ray's messages have several lines, often with a traceback: the last line says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in str(error) else lines[0]) if lines else repr(error)


def _make_table(parts: Sequence[bytes], error: FlyweightError | None = None) -> pyarrow.Table:
    """Results, and the kind and text of an error."""
    kinds = [name for name, kind in ERRORS.items() if isinstance(error, kind)]
    columns: dict[str, Any] = {
        "result": pyarrow.array(parts, pyarrow.binary()),
        "kind": pyarrow.array([kinds[0] if kinds else ""] * len(parts), pyarrow.string()),
        "text": pyarrow.array([str(error or "")] * len(parts), pyarrow.string()),
    }
    return pyarrow.table(columns)
