"""Items mapped by actors on a Ray cluster of this machine: one that ends its process, and what
listens.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

import ray

from flyweight.errors import ConfigError
from flyweight.parallel.ray_data import ActorPool, Work, connect, count_machines, map_in_actors

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


def test_a_node_without_cpus_is_no_machine() -> None:
    nodes = [
        {"Alive": True, "Resources": {"memory": 1.0}},  # a head of KubeRay
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 2.0}},
    ]
    assert count_machines(nodes) == 2 and count_machines(nodes[:1]) == 1
    with connect(ActorPool(2)):
        assert count_machines(ray.nodes()) == 1


def test_nothing_starts_another_cluster_afterwards() -> None:
    """As a thread of Ray Data may, which still runs when its cluster has ended."""
    with connect(ActorPool(1)):
        assert ray.nodes()
    with pytest.raises(ray.exceptions.RaySystemError):
        ray.nodes()
    assert not ray.is_initialized()


def list_descendants() -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def list_sockets() -> set[str]:
    """Those of this process and what it started."""
    found = set()
    for pid in list_descendants():
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
