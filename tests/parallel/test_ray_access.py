"""Who can reach a Ray cluster, and when a replica gives up its server; no cluster is started."""

import asyncio
import os
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

from ray.exceptions import ActorDiedError, ActorUnavailableError

from flyweight.errors import ConfigError
from flyweight.parallel import ray_actor
from flyweight.parallel.ray_access import check_authentication, on_loopback

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
