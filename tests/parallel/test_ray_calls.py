"""What becomes of Ray's errors, by whose they are; no cluster is started."""

import asyncio
from collections.abc import AsyncIterator, Generator
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
from flyweight.parallel.ray_channel import CLOSED, encode_items
from flyweight.parallel.ray_serve import RayCluster


def make_task_error(cause: Exception) -> Exception:
    """As Ray raises one of our own code in a replica."""
    error = RayTaskError("compute", "ray::compute()\nValueError: x", cause, "replica", 7, "::1")
    found: Exception = error.as_instanceof_cause()
    return found


class Call:
    """A call that Ray Serve has made: it lasts until the test ends, or fails."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.cancels = error, 0

    def cancel(self) -> None:
        self.cancels += 1

    async def wait(self) -> bytes:
        if self.error is None:
            await asyncio.Event().wait()
            return END
        for _ in range(30):  # the channel's frames come first
            await asyncio.sleep(0)
        raise self.error

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.wait().__await__()


class Handle:
    """Of a replica whose channel has these frames of each request, or fails.  A call fails with
    `error`.
    """

    closes = False  # whether the channel ends by itself

    def __init__(self, items: list[bytes | Exception], error: Exception | None = None) -> None:
        self.items, self.error = items, error
        self.calls: list[Call] = []
        self.numbers: list[int] = []

    def options(self, method_name: str, stream: bool = False) -> Any:
        return SimpleNamespace(remote=self.stream if stream else self.compute)

    def compute(self, name: str, number: int, frame: bytes) -> Call:
        self.numbers.append(number)
        self.calls.append(Call(self.error))
        return self.calls[-1]

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        for item in self.items:
            await asyncio.sleep(0)
            if isinstance(item, Exception):
                raise item
            for number in self.numbers:
                for found in encode_items([(number, item)]):
                    yield found
        if not self.closes:
            await asyncio.Event().wait()
        yield CLOSED


def make_cluster(handle: Any) -> RayCluster:
    cluster: Any = RayCluster(lambda setup, patience: None, ReplicaPlan(1, 1))  # type: ignore[arg-type,return-value]
    cluster._handle = handle
    found: RayCluster = cluster
    return found


def read(handle: Handle) -> list[bytes]:
    async def work() -> list[bytes]:
        return [data async for data in make_cluster(handle).compute("a", b"frame")]

    return asyncio.run(asyncio.wait_for(work(), 30))


def test_an_error_of_our_code_is_one_of_the_call() -> None:
    for items in ([], [b"frame"]):
        handle = Handle([*items], make_task_error(ValueError("the text of a prompt")))
        with pytest.raises(CallError) as found:
            read(handle)
        assert str(found.value) == "ValueError" and not handle.calls[0].cancels


def test_a_call_that_reaches_no_replica_is_refused() -> None:
    unavailable = DeploymentUnavailableError(None)
    handle = Handle([], unavailable)
    assert read(handle) == [GONE] and not handle.calls[0].cancels
    with pytest.raises(DeploymentUnavailableError):
        read(Handle([b"frame"], unavailable))


def test_a_channel_that_reaches_no_replica_refuses_its_requests() -> None:
    unavailable = DeploymentUnavailableError(None)
    handle = Handle([unavailable])
    assert read(handle) == [GONE] and handle.calls[0].cancels == 1
    with pytest.raises(DeploymentUnavailableError):
        read(Handle([b"frame", unavailable]))


def test_the_death_of_an_actor_stays_one() -> None:
    handle = Handle([b"frame"], ActorDiedError())
    with pytest.raises(ActorDiedError):
        read(handle)
    handle = Handle([b"frame", ActorDiedError()])
    with pytest.raises(ActorDiedError):
        read(handle)
    assert handle.calls[0].cancels == 1
    assert read(Handle([b"frame", END])) == [b"frame", END]


def test_an_error_of_the_channel_is_of_no_call() -> None:
    """All its requests would end with an error of theirs; now they may begin again elsewhere."""
    with pytest.raises(EngineError, match=r"^bad$") as found:
        read(Handle([make_task_error(ValueError("bad"))]))
    assert not isinstance(found.value, CallError)


def test_a_replica_has_one_channel_and_no_trace_is_left() -> None:
    async def work() -> None:
        handle = Handle([b"frame", END])
        handle.closes = True
        cluster: Any = make_cluster(handle)
        for name in ("a", "a", "b"):
            found = [data async for data in cluster.compute(name, b"frame")]
            assert found == [b"frame", END]
            for _ in range(30):
                await asyncio.sleep(0)
        assert handle.numbers == [1, 2, 3] and [*cluster._inlets] == ["b"]

    asyncio.run(asyncio.wait_for(work(), 30))


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
    async def fail(name: str, frame: bytes) -> bytes:
        raise OSError("cut")

    handle = SimpleNamespace(options=lambda **given: SimpleNamespace(remote=fail))
    with pytest.raises(EngineError, match=r"^cut$"):
        asyncio.run(make_cluster(handle).tell("a", b"frame"))
