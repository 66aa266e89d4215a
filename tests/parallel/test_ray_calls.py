"""What becomes of Ray's errors, by whose they are; no cluster is started."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="the extra [distributed] is not installed")

from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError

from flyweight.errors import EngineError
from flyweight.parallel import ray_serve
from flyweight.parallel.cluster import END, GONE, ReplicaPlan
from flyweight.parallel.cluster_errors import CallError
from flyweight.parallel.ray_serve import RayCluster


def make_task_error(cause: Exception) -> Exception:
    """As Ray raises one of our own code in a replica."""
    error = RayTaskError("compute", "ray::compute()\nValueError: x", cause, "replica", 7, "::1")
    found: Exception = error.as_instanceof_cause()
    return found


class Answer:
    """A stream that Ray Serve makes of a call."""

    def __init__(self, items: list[bytes | Exception]) -> None:
        self.items, self.cancels = items, 0

    def cancel(self) -> None:
        self.cancels += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item


def make_cluster(answer: Any) -> RayCluster:
    """One whose calls are answered so."""
    cluster: Any = RayCluster(lambda setup, patience: None, ReplicaPlan(1, 1))  # type: ignore[arg-type,return-value]
    call = SimpleNamespace(remote=lambda name, frame: answer)
    cluster._handle = SimpleNamespace(options=lambda **given: call)
    found: RayCluster = cluster
    return found


def read(answer: Answer) -> list[bytes]:
    async def work() -> list[bytes]:
        return [data async for data in make_cluster(answer).compute("a", b"frame")]

    return asyncio.run(work())


def test_an_error_of_our_code_is_one_of_the_call() -> None:
    for items in ([], [b"frame"]):
        answer = Answer([*items, make_task_error(ValueError("the text of a prompt"))])
        with pytest.raises(CallError) as found:
            read(answer)
        assert str(found.value) == "ValueError"


def test_a_call_that_reaches_no_replica_is_refused() -> None:
    unavailable = DeploymentUnavailableError(None)
    answer = Answer([unavailable])
    assert read(answer) == [GONE] and not answer.cancels
    with pytest.raises(DeploymentUnavailableError):
        read(Answer([b"frame", unavailable]))


def test_the_death_of_an_actor_stays_one() -> None:
    answer = Answer([b"frame", ActorDiedError()])
    with pytest.raises(ActorDiedError):
        read(answer)
    assert answer.cancels == 1
    assert read(Answer([b"frame", END])) == [b"frame", END]


@pytest.mark.parametrize(
    "error", [ValueError("bad\noptions"), RuntimeError("bad"), make_task_error(ValueError("bad"))]
)
def test_any_error_of_a_start_is_ours(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_many(*given: Any, **more: Any) -> Any:
        raise error

    monkeypatch.setattr(ray_serve.serve, "run_many", run_many)
    cluster: Any = make_cluster(None)
    cluster._registry = "a registry"
    with pytest.raises(EngineError, match=r"^bad$"):
        asyncio.run(cluster.start(b"setup"))


def test_any_error_of_a_question_is_ours() -> None:
    async def fail() -> bytes:
        raise OSError("cut")

    with pytest.raises(EngineError, match=r"^cut$"):
        asyncio.run(make_cluster(fail()).tell("a", b"frame"))
