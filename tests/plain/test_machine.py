"""What the machine lets us use, read from made-up roots: cgroups of both versions, also nested."""

import mmap
import os
from pathlib import Path

import pytest

from flyweight.plan.machine import Machine, list_nodes, measure_resident, read_machine

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def root(path: Path, files: dict[str, str], group: str = "0::/\n") -> Path:
    """A machine of 16 GiB, 12 of them free."""
    info = f"MemTotal: {16 * MIB} kB\nMemFree: 5 kB\nMemAvailable: {12 * MIB} kB\n"
    for name, text in {"proc/meminfo": info, "proc/self/cgroup": group, **files}.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_no_limits(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    assert read_machine(root(tmp_path, files)) == Machine(8, 16 * GIB, 12 * GIB)


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert read_machine(root(tmp_path, {})) == Machine(8, 16 * GIB, 12 * GIB)


def test_a_container_of_version_2(tmp_path: Path) -> None:
    """Cached files in use count as free: the kernel takes them back."""
    files = {
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\n",
        "sys/fs/cgroup/cpu.max": "250000 100000\n",
    }
    assert read_machine(root(tmp_path, files)) == Machine(3, 4 * GIB, 4 * GIB - 3 * GIB // 2)


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    at = "sys/fs/cgroup/user.slice/"
    files = {
        at + "memory.max": f"{2 * GIB}\n",
        at + "memory.current": f"{GIB}\n",
        at + "cpu.max": "max 100000\n",
        at + "job.scope/memory.max": f"{8 * GIB}\n",
        at + "job.scope/memory.current": "0\n",
        at + "job.scope/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/other/memory.max": "1\n",
    }
    found = read_machine(root(tmp_path, files, "0::/user.slice/job.scope\n"))
    assert found == Machine(2, 2 * GIB, GIB)


@pytest.mark.parametrize("above", [4, 8])
def test_a_fuller_group_above_leaves_less(tmp_path: Path, above: int) -> None:
    """A pod's memory is also its other containers', whatever the own container's limit."""
    own, parent = "sys/fs/cgroup/pod/own/", "sys/fs/cgroup/pod/"
    files = {
        own + "memory.max": f"{4 * GIB}\n",
        own + "memory.current": f"{GIB}\n",
        parent + "memory.max": f"{above * GIB}\n",
        parent + "memory.current": f"{above * GIB - GIB // 2}\n",
    }
    found = read_machine(root(tmp_path, files, group="0::/pod/own\n"))
    assert (found.total, found.available) == (4 * GIB, GIB // 2)


def test_version_1(tmp_path: Path) -> None:
    memory, cpu = "sys/fs/cgroup/memory/", "sys/fs/cgroup/cpu/"
    files = {
        memory + "memory.limit_in_bytes": UNLIMITED_V1,
        memory + "job/memory.limit_in_bytes": f"{GIB}\n",
        memory + "job/memory.usage_in_bytes": f"{GIB // 4}\n",
        cpu + "cpu.cfs_quota_us": "-1\n",
        cpu + "cpu.cfs_period_us": "100000\n",
        cpu + "job/cpu.cfs_quota_us": "50000\n",
        cpu + "job/cpu.cfs_period_us": "100000\n",
    }
    groups = "12:memory:/job\n3:cpu:/job\n1:name=systemd:/job\n"
    assert read_machine(root(tmp_path, files, groups)) == Machine(1, GIB, 3 * GIB // 4)


def test_a_group_named_from_outside_the_container(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n"}
    found = read_machine(root(tmp_path, files, "4:memory:/docker/0123abcd\n"))
    assert found.total == GIB


def test_affinity_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5})
    assert read_machine(root(tmp_path, {"sys/fs/cgroup/cpu.max": "800000 100000\n"})).cores == 2


@pytest.mark.parametrize("text", ["", "garbage", "-5 100000", "1", "max", "100000 0 0"])
def test_odd_files_are_no_limit(tmp_path: Path, text: str) -> None:
    files = {"sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/memory.max": text.split(" ")[0] * 3}
    assert read_machine(root(tmp_path, files)).cores == 8


def test_this_machine() -> None:
    here = read_machine()
    assert here.cores >= 1 and 0 < here.available <= here.total
    before = measure_resident()
    with mmap.mmap(-1, 64 * MIB) as held:  # new pages, whatever this process has free
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 7
        assert 0.9 < (measure_resident() - before) / len(held) < 1.1


def test_nodes_with_memory_and_cores_that_may_be_used(tmp_path: Path) -> None:
    """Node 2 has memory alone, node 3 cores alone, and cores above 7 are not ours."""
    at = "sys/devices/system/node/"
    files = {
        at + "has_memory": "0-2\n",
        at + "node0/cpulist": "0-1,4\n",
        at + "node1/cpulist": "2,5-9\n",
        at + "node2/cpulist": "\n",
        at + "node3/cpulist": "3\n",
    }
    assert list_nodes(root(tmp_path, files)) == [frozenset({0, 1, 4}), frozenset({2, 5, 6, 7})]


def test_a_machine_that_does_not_say_is_one_node(tmp_path: Path) -> None:
    assert list_nodes(root(tmp_path, {})) == [frozenset(range(8))]
