"""Replicas on two hosts of one Ray cluster: what is lost when something happens to one of them."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

sys.path.append(str(Path(__file__).parents[2] / "bench"))  # last: its profile.py is not Python's

import host_loss

from host_servers import computing
from hosts import make_hosts

pytestmark = pytest.mark.long

# Seconds of load; the event happens after a third.  A link has to be cut for more than 10 seconds.
SECONDS = {"cut": 45, "kill": 36}
USUAL = 24
LOSES = ("kill", "cut", "engine", "actor")  # events that end a replica


@pytest.mark.parametrize("event", host_loss.EVENTS)
def test_nothing_is_lost_in_silence(tmp_path: Path, event: str) -> None:
    """Every request is answered in full, with the text it had before, or ends with an error that
    says why; the server counts those errors as its clients do.
    """
    run = host_loss.run(event, SECONDS.get(event, USUAL), tmp_path)
    print(host_loss.make_row(event, run))
    assert run.count(host_loss.WHOLE) and not run.wrong
    assert not run.count(host_loss.SILENT) and not run.count(host_loss.REFUSED)
    broken = [one for one in run.found if one.kind == host_loss.BROKEN]
    assert {one.code for one in broken} <= {"engine_down"}
    assert host_loss.sum_counter(run, "failed_requests_total") == len(broken)
    lost = host_loss.sum_counter(run, "replica_lost_total")
    assert lost >= 1 if event in LOSES else not lost and not broken


def test_a_cluster_without_tokens_is_not_joined(tmp_path: Path) -> None:
    """A program with a token can join it; so can one without."""
    with make_hosts(1) as (host,):
        host_loss.start_ray(host, None, "", tmp_path)
        with computing(
            host, "stories", "--replicas", "2", "--ray-address", f"{host.address}:6379",
            RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64,
        ) as node:  # fmt: skip
            code, said = node.wait()
    assert code == 2 and said.startswith("error: --ray-address = ") and "without a token" in said
