"""Ray reads the options that the files in deploy/ start it with."""

import shlex

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

from ray.scripts.scripts import start

from deploy_files import HEAD_GROUP, WORKER_GROUP, list_host_words, list_start_options

ADDED = {  # by KubeRay
    "head": ["--head", "--dashboard-host=0.0.0.0", "--metrics-export-port=8080"],
    "worker": ["--address=head:6379", "--metrics-export-port=8080", "--block"],
}


def list_started() -> dict[str, list[str]]:
    """The options of `ray start`, by file and kind of machine."""
    head = shlex.split(list_host_words("head", "entrypoint")[2])
    worker = list_host_words("worker", "entrypoint") + list_host_words("worker", "command")
    return {
        "hosts: head": head[2 : head.index("&&")],
        "hosts: worker": worker[2:],
        "kuberay: head": list_start_options(HEAD_GROUP["rayStartParams"]) + ADDED["head"],
        "kuberay: worker": list_start_options(WORKER_GROUP["rayStartParams"]) + ADDED["worker"],
    }


@pytest.mark.parametrize("where", list_started())
def test_ray_accepts_the_options(where: str) -> None:
    read = start.make_context("ray start", list_started()[where]).params
    assert read["head"] == where.endswith("head")
    assert read["num_cpus"] == (0 if where == "kuberay: head" else 1)
    assert read["disable_usage_stats"] and read["object_store_memory"] == 100 << 20
    assert read["dashboard_agent_listen_port"] == 52365
    assert read["include_dashboard"] is (False if read["head"] else None)
    assert read["block"] is not read["head"]  # the server follows it
