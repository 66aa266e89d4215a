"""Who can reach a Ray cluster, and when a replica gives up its server or its engine; no cluster is
started.
"""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

from ray.exceptions import ActorDiedError, ActorUnavailableError

from flyweight.errors import ConfigError
from flyweight.parallel import ray_actor
from flyweight.parallel.ray_access import check_authentication, check_cluster, on_loopback
from flyweight.parallel.ray_stranger import REFUSED

# Python calls it too, after Serve.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .*__del__. was never awaited")

NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_cluster_off_loopback_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for near in ("", "auto", "127.0.0.1:6379", "localhost:6379", "[::1]:6379"):
        check_authentication(near, "--ray-address", near)
    for far in ("10.0.0.1:6379", "[fe80::1]:6379", "head:6379", "ray://head:10001"):
        with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"):
            check_authentication(far, "--ray-address", far)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    check_authentication("10.0.0.1:6379", "--ray-address", "auto")


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (REFUSED, None),
        (0, "takes programs without a token"),
        (1, r"cannot be checked for authentication \(no route\)"),
    ],
)
def test_a_cluster_off_loopback_requires_the_token(
    monkeypatch: pytest.MonkeyPatch, code: int, problem: str | None
) -> None:
    """Also where this program has one, which a cluster without tokens ignores."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    asked: list[dict[str, str]] = []

    def ask(words: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        assert words[-1] == "10.0.0.1:6379"
        asked.append(more["env"])
        return subprocess.CompletedProcess(words, code, b"", b"Traceback\nno route\n")

    monkeypatch.setattr("flyweight.parallel.ray_access.subprocess.run", ask)
    check_cluster("127.0.0.1:6379", "--ray-address", "auto")
    assert not asked
    refused = nullcontext() if problem is None else pytest.raises(ConfigError, match=problem)
    with refused:
        check_cluster("10.0.0.1:6379", "--ray-address", "auto")
    (environment,) = asked
    assert environment["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in environment


def test_a_local_cluster_has_a_token_of_its_own() -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with pytest.raises(ConfigError, match="this version of Ray"), on_loopback():
        assert "RAY_AUTH_MODE" not in os.environ
        first = os.environ["RAY_AUTH_TOKEN"]
    assert len(first) == 64
    with on_loopback():
        os.environ["RAY_AUTH_MODE"] = "token"  # as Ray does
        assert os.environ["RAY_AUTH_TOKEN"] == first


def test_only_a_dead_registry_ends_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [
        ActorUnavailableError("cut", None), OSError("cut"), ActorDiedError(), OSError("unused")
    ]  # fmt: skip
    deleted: list[str] = []

    class Replica(ray_actor.ReplicaActor):
        def __init__(self) -> None:
            self.app, self.name = "app", "one"

        async def _report_once(self) -> None:
            raise errors.pop(0)

    def delete(app: str, **more: Any) -> None:
        deleted.append(app)

    monkeypatch.setattr(ray_actor, "BEAT", 0)
    monkeypatch.setattr("ray.serve.delete", delete)
    asyncio.run(Replica()._report())
    assert deleted == ["app"] and len(errors) == 1


def test_a_replica_that_ends_by_plan_closes_its_engine_and_reports_no_loss() -> None:
    class Program:
        closed = 0

        def report(self) -> bytes:
            return b"lost" if self.closed else b"ready"

        async def close(self) -> None:
            self.closed += 1
            await asyncio.sleep(0.01)

    said: list[bytes] = []

    class Replica(ray_actor.ReplicaActor):
        def __init__(self) -> None:
            self.name, self.program = "one", Program()
            self._reporting = asyncio.get_running_loop().create_task(self._report())

        async def _report_once(self) -> None:
            said.append(self.program.report())

    async def main() -> None:
        replica = Replica()
        while not said:
            await asyncio.sleep(0)
        end: Any = replica.__del__
        await end()  # as Serve does
        assert replica.program.closed == 1
        with pytest.raises(asyncio.CancelledError):
            await replica._reporting
        assert set(said) == {b"ready"}

    asyncio.run(main())


def test_a_cluster_that_is_not_there_ends_the_server() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nothing listens there, and no other process can
        address = f"127.0.0.1:{held.getsockname()[1]}"
        words = ["serve", "stories", "--port", "0", "--replicas", "2", "--ray-address", address]
        done = subprocess.run(
            [sys.executable, "-m", "flyweight", *words], capture_output=True, text=True
        )
    assert done.returncode == 2
    (line,) = [x for x in done.stderr.splitlines() if not x.startswith("loading: ")]
    assert line.startswith(f"error: --ray-address = '{address}': no Ray cluster answers there: ")
    assert line.endswith("; start one with: ray start --head")
