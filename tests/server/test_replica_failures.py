"""Replicas that fail, differ, are silent for a while or refuse requests, and what follows."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_cluster import (
    FACTS,
    LOST,
    FakeCluster,
    Listener,
    begin,
    look,
    make_host,
    run,
    step,
    submit,
    turn,
)

from flyweight import __version__
from flyweight.errors import EngineError
from flyweight.parallel.cluster import END
from flyweight.server import pipe
from flyweight.server.replicas import host as host_module
from flyweight.server.replicas import replica_set
from flyweight.server.replicas.host import ReplicaHost
from flyweight.server.replicas.reports import ReplicaReport


def failures(listener: Listener) -> list[str]:
    return [one.message for one in listener.all(pipe.Failed)]


def names(host: ReplicaHost) -> list[str]:
    return [one.name for one in host.set.open]


UNLIKE = [
    (ReplicaReport("0.0.1"), "runs flyweight 0.0.1"),
    (ReplicaReport(__version__, facts={**FACTS, "vocab": 7}), "vocab = 7"),
    (ReplicaReport(__version__, facts={}), "is not valid: KeyError"),
    (ReplicaReport(__version__, failed="no memory for it"), "no memory for it"),
]


@pytest.mark.parametrize(("report", "words"), UNLIKE)
def test_a_start_ends_where_a_later_replica_cannot_serve(report: ReplicaReport, words: str) -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", least=2)
        assert not failures(listener)
        cluster.reports["b"] = report
        await look(host, cluster)
        (problem,) = failures(listener)
        assert words in problem and "\n" not in problem and not listener.all(pipe.Ready)
        await host.close()

    run(work)


def test_a_start_ends_where_an_engine_does() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", least=3)
        cluster.reports["b"].failed = "the engine process ended"
        await look(host, cluster)
        assert failures(listener) == ["the engine process ended"]
        await host.close()

    run(work)


def test_a_start_does_not_wait_for_machines_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "LONGEST", 0.0)

    async def work() -> None:
        cluster, host, listener = await begin("a", "b", least=3)
        assert not failures(listener), "the wait has not begun"
        host._enough = 0.0
        cluster.reports["c"] = ReplicaReport(__version__)
        await look(host, cluster)
        assert not failures(listener), "one that loads takes as long as it needs"
        del cluster.reports["c"]
        for _ in range(3):
            await asyncio.sleep(0.001)
            await look(host, cluster)
        (problem,) = failures(listener)
        assert problem.startswith("2 of 3 replicas are up after 0 seconds") and "\n" not in problem
        await host.close()

    run(work)


def test_a_server_that_is_ready_waits_for_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "LONGEST", 0.0)

    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        host._enough = 0.0
        del cluster.reports["a"]
        await look(host, cluster)
        assert not failures(listener)
        await host.close()

    run(work)


def test_a_replica_that_was_silent_is_taken_again() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", started=True)
        report = cluster.reports.pop("a")
        await look(host, cluster)
        assert names(host) == ["b"] and listener.all(pipe.Ready)[-1].facts["replicas"] == 1
        cluster.reports["a"] = report
        await look(host, cluster)
        assert names(host) == ["b", "a"] and listener.all(pipe.Ready)[-1].facts["replicas"] == 2
        assert not cluster.dropped and host.restarts == 0
        await host.close()

    run(work)


@pytest.mark.parametrize("deaf", [False, True])
def test_one_that_computed_is_replaced_or_taken_again(deaf: bool) -> None:
    """Where it was silent, and the cluster cannot end it, it is still there."""

    async def work() -> None:
        cluster, host, _ = await begin("a", "b", started=True)
        host.send(0, submit("x"))
        await turn()
        name = cluster.where("x")
        cluster.deaf.update([name] if deaf else [])
        report = cluster.reports.pop(name)
        await look(host, cluster)
        cluster.reports[name] = report
        await look(host, cluster)
        assert cluster.dropped == ([] if deaf else [name])
        assert (name in names(host)) is deaf and host.restarts == 1
        await host.close()

    run(work)


def test_a_replica_that_refused_gets_requests_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's handle may learn of a replica after its first report."""
    now = [100.0]
    monkeypatch.setattr(replica_set, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def work() -> None:
        cluster, host, _ = await begin("a", "b", routing="round-robin", started=True)
        cluster.leaving.add("a")
        for id in ("u", "v"):
            host.send(0, submit(id))
        await turn()
        assert [name for name, _ in cluster.asked] == ["b", "b"]
        await look(host, cluster)
        assert names(host) == ["b"], "not at once"
        now[0] += replica_set.AGAIN
        await look(host, cluster)
        assert set(names(host)) == {"a", "b"}
        for id in ("w", "x"):  # which it still refuses
            host.send(0, submit(id))
        await turn()
        now[0] += replica_set.AGAIN
        await look(host, cluster)
        assert names(host) == ["b"], "it waits twice as long"
        now[0] += replica_set.AGAIN
        cluster.leaving.clear()
        await look(host, cluster)
        for id in ("y", "z"):
            host.send(0, submit(id))
        await turn()
        assert {cluster.where("y"), cluster.where("z")} == {"a", "b"}
        await host.close()

    run(work)


def test_streams_of_a_replica_that_drains_survive_the_last_other_one() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", routing="round-robin", started=True)
        host.send(0, submit("x"))
        await turn()
        drained = cluster.where("x")
        cluster.leaving.add(drained)
        host.send(0, submit("y"))
        host.send(0, submit("z"))
        await turn()
        await cluster.answer("y", step("y", 1), LOST)
        assert names(host) == [] and listener.losses == 0
        await cluster.answer("x", step("x", 5), step("x", 6), END)
        reports = listener.all(pipe.StepReport)
        assert [t for r in reports for n in r.news if n.id == "x" for t in n.tokens] == [5, 6]
        await look(host, cluster)
        assert listener.losses == 1 and not host.set.runs, "nothing computes any more"
        cluster.reports["c"] = ReplicaReport(__version__, facts=dict(FACTS))
        ready = len(listener.all(pipe.Ready))
        await look(host, cluster)
        assert len(listener.all(pipe.Ready)) == ready + 1
        await host.close()

    run(work)


def test_one_replica_for_another_makes_the_server_ready() -> None:
    """In the time between two looks, so that their number stays."""

    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        host.send(0, submit("x"))
        await turn()
        cluster.reports = {"b": ReplicaReport(__version__, facts=dict(FACTS))}
        await look(host, cluster)
        assert listener.losses == 1 and names(host) == ["b"]
        last = [m for m in listener.taken if isinstance(m, pipe.Ready)]
        assert len(last) == 2 and not host.restarting
        await host.close()

    run(work)


@pytest.mark.parametrize("data", [b"\xc1", msgspec.msgpack.encode([7, "other"]), b"\xa1\xff"])
def test_a_report_that_cannot_be_decoded_ends_nothing(data: bytes) -> None:
    async def work() -> None:
        cluster = FakeCluster("a")
        cluster.garbage["b"] = data
        host, listener = await make_host(cluster)
        host.restarts_lost = True
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(f"{name} {facts}")
        watch = host.set.start(host._watch())
        while not said:
            await asyncio.sleep(0)
        await turn()
        assert "every machine needs flyweight" in said[0] and not watch.done()
        assert names(host) == ["a"] and not failures(listener)
        await host.close()

    run(work)


def test_an_error_of_the_client_does_not_end_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "EVERY", 0.0)

    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(name)

        def fail(message: Any) -> None:
            raise ValueError("the client")

        listener.take = fail  # type: ignore[method-assign]
        cluster.reports["b"] = ReplicaReport(__version__, facts=dict(FACTS))
        watch = host.set.start(host._watch())
        await turn()
        assert said[:2] == ["replica_ready", "replicas_failed"] and not watch.done()
        del listener.take
        await turn()
        assert listener.all(pipe.Ready)[-1].facts["replicas"] == 2
        await host.close()

    run(work)


def test_a_cluster_that_raises_anything_is_given_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "EVERY", 0.0)

    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        said: list[str] = []
        host.on_failure = said.append

        async def fail() -> dict[str, bytes]:
            raise TypeError("no such method\nat all")

        cluster.list = fail  # type: ignore[method-assign]
        watch = host.set.start(host._watch())
        await turn()
        assert not watch.done() and not said
        monkeypatch.setattr(host_module, "PATIENCE", 0.0)
        await watch
        assert said == ["the cluster of the replicas does not answer: no such method"]
        host.restarts_lost = False
        await host._watch()
        assert failures(listener) == said and len(said) == 1, "a start ends"
        await host.close()

    run(work)


def test_a_question_is_answered_without_a_replica_that_is_not() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", started=True)
        cluster.deaf.add("a")
        host.send(0, pipe.EngineQuestion(1, "kv"))
        host.send(0, pipe.EngineQuestion(2, "reset"))
        await turn()
        answers = {one.number: one.value for one in listener.all(pipe.EngineAnswer)}
        some = {"replicas": {"1": {"freed": 3}}, "silent": [0]}
        assert answers == {1: some, 2: {"freed": 3, "silent": [0]}}
        await host.close()

    run(work)


def test_an_error_of_our_own_is_no_loss_of_a_replica() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", started=True)
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(f"{name} {facts}")
        take = listener.take

        def fail(message: Any) -> None:
            if isinstance(message, pipe.StepReport):
                raise ValueError("the text of a prompt")
            take(message)

        listener.take = fail  # type: ignore[method-assign]
        host.send(0, submit("x"))
        await turn()
        await cluster.answer("x", step("x", 5))
        (refused,) = listener.all(pipe.RequestRefused)
        error = pipe.unpack_error(refused.error)
        assert isinstance(error, EngineError) and error.code == "engine_error"
        assert said == ["replicas_failed {'problem': 'ValueError'}"]
        assert not cluster.dropped and host.restarts == 0 and not host.set.runs
        assert len(names(host)) == 2
        await host.close()

    run(work)


def test_a_replica_that_ends_before_it_is_ready_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", least=2)
        cluster.reports["b"] = ReplicaReport(__version__)
        await look(host, cluster)
        report = cluster.reports.pop("b")
        await look(host, cluster)
        cluster.reports["b"] = report  # it lacked time
        await look(host, cluster)
        assert not failures(listener)
        del cluster.reports["b"]
        monkeypatch.setattr(host_module, "LATE", 0.0)
        for _ in range(2):
            await asyncio.sleep(0.001)
            await look(host, cluster)
        (problem,) = failures(listener)
        assert problem.startswith("a replica ended before it was ready")
        await host.close()

    run(work)


def test_other_replicas_may_go_before_they_are_ready() -> None:
    """Those that follow another start, or an unload, and those of a server that has started."""

    async def work() -> None:
        cluster, host, listener = await begin("a", started=True)
        cluster.reports["b"] = ReplicaReport(__version__)
        await look(host, cluster)
        del cluster.reports["b"]
        await look(host, cluster)
        cluster.reports["c"] = ReplicaReport(__version__)
        await look(host, cluster)
        reports = dict(cluster.reports)
        host.send(0, pipe.Unload())
        await turn()
        host.send(0, listener.begin_loading())
        await turn()
        cluster.reports = reports  # they are still there for a moment
        await look(host, cluster)
        cluster.reports = {}
        await look(host, cluster)
        assert host.loading and not failures(listener)
        await host.close()

    run(work)
