"""Items mapped by actors on a Ray cluster of this machine: one that ends its process, and what
listens.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

import ray

from flyweight.errors import ConfigError, EngineError
from flyweight.parallel import ray_data
from flyweight.parallel.ray_data import (
    STARTS,
    ActorPool,
    Work,
    connect,
    count_sharing,
    map_in_actors,
)
from process_tree import list_descendants

pytestmark = pytest.mark.long
LISTENS = "0A"  # in /proc/net/tcp


def make(sharing: int) -> Callable[[], Work]:
    def start() -> Work:
        def work(item: bytes) -> Iterator[bytes]:
            if item == b"fatal":
                os._exit(1)
            yield item

        return work

    return start


def test_an_item_that_ends_its_process_is_left_out() -> None:
    items = [b"1", b"fatal", b"2", b"3"]
    assert set(map_in_actors(items, make, ActorPool(1, items=1))) == {b"1", b"2", b"3"}


def make_fatal_start(sharing: int) -> Callable[[], Work]:
    def start() -> Work:
        os._exit(1)

    return start


def test_a_process_that_ends_while_it_starts_is_refused() -> None:
    words = f"a replica's process on .* ended {STARTS} times while it started; "
    with pytest.raises(EngineError, match=words) as caught:
        list(map_in_actors([b"1", b"2"], make_fatal_start, ActorPool(1)))
    assert "\n" not in str(caught.value)


def test_starts_are_counted_until_one_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store: dict[str, str] = {"a": str(STARTS - 1)}
    actor = SimpleNamespace(get_actor_id=lambda: "a")
    monkeypatch.setattr("ray.get_runtime_context", lambda: actor)
    calls: dict[str, Any] = {"get": store.get, "put": store.__setitem__, "del": store.__delitem__}
    for name, call in calls.items():
        take = partial(lambda call, *given, namespace: call(*given), call)
        monkeypatch.setattr(ray_data, f"_internal_kv_{name}", take)
    with pytest.raises(ConfigError), ray_data._count_starts():
        assert store == {"a": str(STARTS)}
        raise ConfigError("the model does not fit")
    assert not store
    with ray_data._count_starts():
        assert store == {"a": "1"}
    store["a"] = str(STARTS)
    with pytest.raises(EngineError, match="ended 3 times"), ray_data._count_starts():
        pass


def list_nodes(*cpus: float) -> list[dict[str, Any]]:
    return [{"Alive": True, "Resources": {"CPU": n} if n else {"memory": 1.0}} for n in cpus]


@pytest.mark.parametrize(
    ("nodes", "replicas", "cpus", "sharing"),
    [
        (list_nodes(0, 4, 2), 2, 1, 1),  # a head of KubeRay runs none
        (list_nodes(0, 4, 2), 3, 1, 2),
        (list_nodes(0), 3, 1, 3),
        (list_nodes(32, 8), 2, 16, 2),  # one has too few CPUs for a replica
        (list_nodes(64, 16), 4, 16, 3),
        (list_nodes(2, 2), 8, 1, 2),  # others wait for CPUs
        ([*list_nodes(2), {"Alive": False, "Resources": {"CPU": 4.0}}], 2, 1, 2),
    ],
)
def test_replicas_share_machines_that_have_the_cpus(
    nodes: list[dict[str, Any]], replicas: int, cpus: float, sharing: int
) -> None:
    assert count_sharing(nodes, ActorPool(replicas, cpus=cpus)) == sharing


def test_replicas_without_a_cluster_share_this_machine() -> None:
    pool = ActorPool(2)
    with connect(pool):
        assert count_sharing(ray.nodes(), pool) == 2


def test_a_program_that_is_connected_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise AssertionError("it is not called")

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.init", fail)
    monkeypatch.setattr("ray.shutdown", fail)
    refused = pytest.raises(ConfigError, match=r"^this program is already connected to Ray; call")
    with refused, connect(ActorPool(1)):
        pass


def test_nothing_starts_another_cluster_afterwards() -> None:
    """As a thread of Ray Data may, which still runs when its cluster has ended."""
    with connect(ActorPool(1)):
        assert ray.nodes()
    with pytest.raises(ray.exceptions.RaySystemError):
        ray.nodes()
    assert not ray.is_initialized()


def list_sockets() -> set[str]:
    """Those of this process and what it started."""
    found = set()
    for pid in list_descendants(os.getpid()):
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                found.add(os.readlink(file))
    return found


def list_listeners() -> set[str]:
    """The addresses, in hexadecimal, at which this process and what it started listen."""
    own, found = list_sockets(), set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].split(":")[0])
    return found


def test_a_local_cluster_listens_on_loopback_alone() -> None:
    with connect(ActorPool(1)):
        found = list_listeners()
    assert found and all(one.endswith("7F") or one[16:] == "FFFF00000100007F" for one in found)


def test_a_cluster_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is left behind."""

    def fail(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", fail)
    refused = pytest.raises(ConfigError, match="no Ray cluster can be reached: The current node")
    with refused, connect(ActorPool(1)):
        pass
    assert not ray.is_initialized()
