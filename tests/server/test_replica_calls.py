"""Questions, calls and starts of replicas that hang or fail, each without harm to others."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import begin, look, run, step, submit, turn

from flyweight.errors import EngineError
from flyweight.parallel.cluster import END, GONE
from flyweight.parallel.cluster_errors import CallError
from flyweight.server import pipe
from flyweight.server.replicas import host as host_module
from flyweight.server.replicas import replica_set
from flyweight.server.replicas.engine_replica import decode
from flyweight.server.replicas.host import ReplicaHost


def names(host: ReplicaHost) -> list[str]:
    return [one.name for one in host.set.open]


def test_a_replica_that_hangs_holds_up_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "ANSWER", 0.2)

    async def work() -> None:
        cluster, host, listener = await begin("a", "b", "c", started=True)
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(f"{name} {facts}")
        cluster.hung.update("ab")
        host.send(0, pipe.EngineQuestion(1, "kv"))
        await turn()
        assert [name for name, _ in cluster.told] == ["a", "b", "c"], "all at once"
        assert not listener.all(pipe.EngineAnswer)
        while not listener.all(pipe.EngineAnswer):
            await asyncio.sleep(0.01)
        (answer,) = listener.all(pipe.EngineAnswer)
        assert answer.value == {"replicas": {"2": {"freed": 3}}, "silent": [0, 1]}
        assert len(said) == 2 and "replica_silent" in said[0]
        assert "no answer in 0.2 seconds" in said[0]
        await host.close()

    run(work)


def test_one_replica_without_progress_is_dropped_while_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(replica_set, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def work() -> None:
        cluster, host, _ = await begin("a", "b", "c", routing="round-robin", started=True)
        for id in ("u", "v"):
            host.send(0, submit(id))
        await turn()
        assert [name for name, _ in cluster.asked] == ["a", "b"]
        for _ in range(4):
            now[0] += 0.6 * host.plan.patience
            await cluster.answer("v", step("v", 7))
            await look(host, cluster)
        assert cluster.dropped == ["a"] and names(host) == ["b", "c"]
        assert cluster.where("u") == "c", "it begins again"
        await host.close()

    run(work)


def test_a_replica_whose_engine_has_ended_is_silent() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", started=True)
        tell = cluster.tell

        async def answer(name: str, frame: bytes) -> bytes:
            return {"a": b"", "b": GONE}.get(name) or await tell(name, frame)

        cluster.tell = answer  # type: ignore[method-assign]
        host.send(0, pipe.EngineQuestion(1, "reset"))
        await turn()
        (found,) = listener.all(pipe.EngineAnswer)
        assert found.value == {"freed": 3, "silent": [1]}
        await host.close()

    run(work)


def test_a_reset_empties_what_the_router_expects() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        tell = cluster.tell

        async def answer(name: str, frame: bytes) -> bytes:
            found = await tell(name, frame)
            question = decode(frame, pipe.ToEngine)
            if getattr(question, "number", 0) == 2:  # of an engine that has failed
                return pipe.encode_frame(pipe.EngineAnswer(2, {"problem": "broken"}))
            return found

        cluster.tell = answer  # type: ignore[method-assign]
        for id in "xyz":
            host.send(0, submit(id))
            await turn()
            if id == "y":
                host.send(0, pipe.EngineQuestion(1, "reset"))
                host.send(0, pipe.EngineQuestion(2, "reset"))
                await turn()
        assert host.set.cached == {0: 36}, "of the second alone, as the third finds nothing"
        answers = {one.number: one.value for one in listener.all(pipe.EngineAnswer)}
        assert answers == {1: {"freed": 3}, 2: {"freed": 0}}
        await host.close()

    run(work)


def test_a_call_that_fails_ends_its_request_alone() -> None:
    """The replica's actor goes on: it is not lost, and neither are its other requests."""

    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(f"{name} {facts}")
        for id in ("x", "y"):
            host.send(0, submit(id))
        await turn()
        await cluster.answer("x", CallError("ValidationError"))
        (refused,) = listener.all(pipe.RequestRefused)
        error = pipe.unpack_error(refused.error)
        assert refused.id == "x" and error.code == "engine_error"
        assert str(error) == "the replica failed to compute this request"
        assert said == ["replicas_failed {'problem': 'ValidationError'}"]
        await cluster.answer("y", step("y", 5), END)
        reports = listener.all(pipe.StepReport)
        assert [t for r in reports for n in r.news for t in n.tokens] == [5]
        assert names(host) == ["a"] and not cluster.dropped and host.restarts == 0
        assert host.set.counts.failed == 1 and host.set.counts.retried == 0
        await host.close()

    run(work)


def test_a_pause_keeps_what_a_replica_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams still count as its work, and its conversations come back to it."""
    now = [100.0]
    monkeypatch.setattr(replica_set, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def work() -> None:
        cluster, host, _ = await begin("a", "b", started=True)
        router: Any = host.set._router
        host.send(0, submit("x", tokens=43))
        await turn()
        place, first = cluster.where("x"), {one.name: one.work for one in router.replicas}
        cluster.leaving.add(place)
        host.send(0, submit("y", tokens=43))
        await turn()
        assert cluster.where("y") != place and names(host) == [cluster.where("y")]
        await cluster.answer("y", END)
        now[0] += replica_set.AGAIN
        cluster.leaving.clear()
        await look(host, cluster)
        assert len(names(host)) == 2
        assert {one.name: one.work for one in router.replicas} == first and first[place] > 0
        await cluster.answer("x", END)
        assert [one.work for one in router.replicas] == [0, 0]
        cached = host.set.cached.total()
        host.send(0, submit("z", tokens=43))
        await turn()
        assert host.set.cached.total() == cached + 40
        await host.close()

    run(work)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (EngineError("no cluster"), "no cluster"),
        (RuntimeError("a task failed\nin Ray"), "a task failed"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_load_and_an_unload_end_where_the_cluster_fails(error: Exception, words: str) -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(f"{name} {facts}")
        cluster.error = error
        host.send(0, pipe.Unload())
        await turn()
        assert len(listener.all(pipe.Unloaded)) == 1 and not host.set.members
        assert said == [f"replicas_failed {{'problem': {words!r}}}"]
        host.send(0, pipe.EngineSetup({}, 0.2))
        await turn()
        assert [one.message for one in listener.all(pipe.Failed)] == [words]
        await host.close()

    run(work)


def test_replicas_are_started_and_stopped_one_after_another() -> None:
    async def work() -> None:
        cluster, host, _ = await begin("a", started=True)
        cluster.gate.clear()
        for setup in (pipe.EngineSetup({"seed": 1}, 0.2), pipe.EngineSetup({"seed": 2}, 0.2)):
            host.send(0, setup)
        host.send(0, pipe.Unload())
        await turn()
        assert cluster.starts == 1 and cluster.stops == 0
        cluster.gate.set()
        await turn()
        assert cluster.starts == 2 and cluster.most == 1 and cluster.stops == 1
        assert cluster.setup is not None and cluster.setup.generation == 2
        assert cluster.setup.engine.settings == {"seed": 2}, "the last wish"
        await host.close()

    run(work)
