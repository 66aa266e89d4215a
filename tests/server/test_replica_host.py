"""Requests of several replicas: where they go, and what becomes of them when a replica ends."""

import asyncio
from typing import Any

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
from flyweight.server.replicas.reports import ReplicaReport


def tokens_of(listener: Listener, id: str) -> list[int]:
    reports = listener.all(pipe.StepReport)
    return [t for one in reports for news in one.news if news.id == id for t in news.tokens]


def test_an_answer_passes_through() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b")
        host.send(0, submit("x"))
        await turn()
        await cluster.answer("x", step("x", 5, started=True), step("x", 6, steps=2), END)
        assert tokens_of(listener, "x") == [5, 6]
        assert listener.all(pipe.StepReport)[0].started == ["x"]
        assert not host.set.runs and not host.set.members["a"].readers
        assert host.set.counts.retried == host.set.counts.failed == 0
        assert host.set._router is not None
        assert [one.work for one in host.set._router.replicas] == [0, 0]
        await host.close()

    run(work)


def test_a_request_that_sent_nothing_begins_again_elsewhere() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b")
        host.send(0, submit("x"))
        await turn()
        first = cluster.where("x")
        await cluster.answer("x", step("x", started=True), LOST)
        second = cluster.where("x")
        assert {first, second} == {"a", "b"} and cluster.dropped == [first]
        await cluster.answer("x", step("x", 7, started=True), END)
        assert tokens_of(listener, "x") == [7] and not listener.all(pipe.RequestRefused)
        started = [id for one in listener.all(pipe.StepReport) for id in one.started]
        assert started == ["x"], "the queue is left once"
        assert host.set.counts.retried == 1 and host.restarts == 1
        await host.close()

    run(work)


@pytest.mark.parametrize("last", [LOST, None])
def test_an_answer_that_began_ends_with_an_error(last: Exception | None) -> None:
    """Also where its replica stops to report, and its stream never ends."""

    async def work() -> None:
        cluster, host, listener = await begin("a", "b")
        host.send(0, submit("x"))
        await turn()
        await cluster.answer("x", step("x", 5))
        if last is not None:
            await cluster.answer("x", last)
        else:
            del cluster.reports[cluster.where("x")]
            await look(host, cluster)
        (refused,) = listener.all(pipe.RequestRefused)
        error = pipe.unpack_error(refused.error)
        assert isinstance(error, EngineError) and error.code == "engine_down"
        assert "after the answer had begun" in str(error)
        assert host.set.counts.failed == 1 and host.set.counts.retried == 0
        assert len(cluster.asked) == 1 and not host.set.runs
        await host.close()

    run(work)


def test_a_request_that_ends_two_replicas_is_not_tried_again() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", "c")
        host.send(0, submit("x"))
        await turn()
        await cluster.answer("x", LOST)
        await cluster.answer("x", LOST)
        (refused,) = listener.all(pipe.RequestRefused)
        assert "two replicas were lost" in refused.error["problem"]
        assert len(cluster.asked) == 2 and len(host.set.open) == 1
        await host.close()

    run(work)


def test_a_replica_that_drains_finishes_what_it_has() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", routing="round-robin")
        host.send(0, submit("x"))
        await turn()
        drained = cluster.where("x")
        cluster.leaving.add(drained)
        for id in ("y", "z"):
            host.send(0, submit(id))
        await turn()
        other = ({"a", "b"} - {drained}).pop()
        assert cluster.where("y") == cluster.where("z") == other
        await look(host, cluster)  # it still reports
        assert [one.name for one in host.set.open] == [other]
        await cluster.answer("x", step("x", 5), END)
        del cluster.reports[drained]
        await look(host, cluster)
        assert tokens_of(listener, "x") == [5] and list(host.set.members) == [other]
        assert host.set.counts.lost == host.set.counts.retried == 0 and not cluster.dropped
        await host.close()

    run(work)


def test_a_conversation_stays_and_tenants_share_nothing() -> None:
    async def work() -> None:
        cluster, host, _ = await begin("a", "b", "c")
        for i in range(4):
            host.send(0, submit(f"x{i}", tokens=40 + i, salt="one"))
            await turn()
            await cluster.answer(f"x{i}", END)
        where = {cluster.where(f"x{i}") for i in range(4)}
        assert len(where) == 1, "the longest cached prefix"
        slot = host.set.members[where.pop()].slot
        assert host.set.cached == {slot: 36 + 40 + 40}  # whole blocks before the last token
        host.send(0, submit("y", tokens=43, salt="two"))
        await turn()
        assert host.set.cached.total() == 36 + 40 + 40
        await host.close()

    run(work)


def test_a_busy_replica_is_passed_over() -> None:
    """The one with the cached prefix is not taken where it has too much to do."""

    async def work() -> None:
        cluster, host, _ = await begin("a", "b")
        router: Any = host.set._router
        router.policy.bound = 400
        for i in range(8):
            host.send(0, submit(f"x{i}", tokens=200))
            await turn()
        asked = [name for name, _ in cluster.asked]
        assert asked[:4] == ["a"] * 4 and "b" in asked[4:]
        await host.close()

    run(work)


def test_what_is_aborted_ends_at_its_replica() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b")
        host.send(0, submit("x"))
        await turn()
        host.send(0, pipe.Abort("x", 0, stopped=True))
        await turn()
        assert "x" in host.set.runs, "others of its choices go on"
        host.send(0, pipe.Abort("x"))
        await turn()
        where = cluster.where("x")
        assert cluster.told == [(where, pipe.Abort("x", 0, stopped=True)), (where, pipe.Abort("x"))]
        assert not host.set.runs and not listener.all(pipe.RequestRefused)
        assert host.set.counts.lost == 0
        await host.close()

    run(work)


def test_without_a_replica_the_engine_is_down_until_there_is_one() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a")
        host.restarts_lost = True
        assert len(listener.all(pipe.Ready)) == 1 and not host.restarting
        host.send(0, submit("x"))
        await turn()
        await cluster.answer("x", LOST)
        assert listener.losses == 1 and host.restarting
        assert not host.set.runs and host.set.counts.failed == 1
        cluster.reports["b"] = ReplicaReport(__version__, facts=dict(FACTS))
        await look(host, cluster)
        assert not host.restarting and listener.all(pipe.Ready)[-1].facts["replicas"] == 1
        await host.close()

    run(work)


def test_a_request_waits_for_the_replica_that_follows() -> None:
    """Where a cluster retires the last one before the next has reported."""

    async def work() -> None:
        cluster, host, listener = await begin("a")
        cluster.leaving.add("a")
        host.send(0, submit("x"))
        await turn()
        assert not host.set.open and "x" in host.set.runs
        cluster.reports["b"] = ReplicaReport(__version__, facts=dict(FACTS))
        await look(host, cluster)
        await cluster.answer("x", step("x", 5), END)
        assert tokens_of(listener, "x") == [5] and not listener.all(pipe.RequestRefused)
        assert host.set.counts.failed == 0 and listener.losses == 0
        await host.close()

    run(work)


def test_a_request_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.server.replicas.replica_set.PATIENCE", 0.01)

    async def work() -> None:
        cluster, host, listener = await begin("a")
        cluster.leaving.add("a")
        host.send(0, submit("x"))
        while "x" in host.set.runs:
            await asyncio.sleep(0.01)
        (refused,) = listener.all(pipe.RequestRefused)
        assert "no replica is ready" in refused.error["problem"]
        await host.close()

    run(work)


def test_a_server_is_ready_once_all_replicas_are() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", least=2)
        assert not listener.all(pipe.Ready)
        cluster.reports["b"] = ReplicaReport(__version__)
        await look(host, cluster)
        assert not listener.all(pipe.Ready), "it is still loading"
        cluster.reports["b"].facts = dict(FACTS)
        await look(host, cluster)
        (ready,) = listener.all(pipe.Ready)
        assert ready.facts == {**FACTS, "replicas": 2}
        await host.close()

    run(work)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (ReplicaReport("0.0.1"), "runs flyweight 0.0.1"),
        (ReplicaReport(__version__, facts={**FACTS, "vocab": 7}), "vocab = 7"),
        (
            ReplicaReport(__version__, facts={**FACTS, "fingerprint": "fedcba"}),
            "fingerprint fedcba",
        ),
        (
            ReplicaReport(__version__, facts={**FACTS, "tokenizer": "of another model"}),
            "tokenizer = of another m, another one's 123abc",
        ),
        (ReplicaReport(__version__, failed="no memory for it"), "no memory for it"),
        (ReplicaReport("0.0.1", failed="no setting x"), "runs flyweight 0.0.1, this server"),
        (
            ReplicaReport(__version__, facts={**FACTS, "code": "0ther"}),
            f"another build of flyweight {__version__}: 0ther, another one c0de",
        ),
        (
            ReplicaReport(__version__, facts={**FACTS, "adapter_weights": ["0123456789abcdef"]}),
            "adapters have the fingerprint 0123456789ab, and not none; copy",
        ),
    ],
)
def test_a_replica_that_differs_gets_no_request(report: ReplicaReport, words: str) -> None:
    async def work() -> None:
        cluster, host, _ = await begin("a")
        said: list[str] = []
        host.on_event = lambda name, **facts: said.append(f"{name} {facts}")
        cluster.reports["b"] = report
        await look(host, cluster)
        await look(host, cluster)
        assert [one.name for one in host.set.open] == ["a"]
        assert len(said) == 1 and words in said[0], "it is told once"
        await host.close()

    run(work)


def test_replicas_that_follow_may_have_other_weights() -> None:
    """Files are read again on a reload.  No replica decides which they are, neither one of before
    that is ready late, nor the first of those that follow.
    """

    async def work() -> None:
        cluster, host, _ = await begin("a")
        await host.replace({"fingerprint": "fedcba", "adapter_weights": []})
        assert cluster.setup is not None and cluster.setup.generation == 1
        other = {**FACTS, "fingerprint": "fedcba"}
        foreign = {**FACTS, "fingerprint": "of another model"}
        cluster.reports["foreign"] = ReplicaReport(__version__, 1, foreign)
        await look(host, cluster)
        cluster.reports["late"] = ReplicaReport(__version__, facts=dict(FACTS))
        for name in "bc":
            cluster.reports[name] = ReplicaReport(__version__, 1, other)
        cluster.reports["unlike"] = ReplicaReport(__version__, 1, dict(FACTS))
        cluster.reports["unlike before"] = ReplicaReport(__version__, 0, other)
        await look(host, cluster)
        assert [one.name for one in host.set.open] == ["a", "late", "b", "c"]
        await host.close()

    run(work)


def test_a_server_whose_replica_cannot_load_does_not_start() -> None:
    async def work() -> None:
        cluster = FakeCluster("a")
        cluster.reports["a"] = ReplicaReport(__version__, failed="no such file")
        _, listener = await make_host(cluster, least=2)
        assert [one.message for one in listener.all(pipe.Failed)] == ["no such file"]

    run(work)


def test_totals_of_replicas_never_fall() -> None:
    async def work() -> None:
        cluster, host, listener = await begin("a", "b", routing="round-robin")
        for id in ("x", "y"):
            host.send(0, submit(id))
            await turn()
        await cluster.answer("x", step("x", 5, steps=10))
        await cluster.answer("y", step("y", 5, steps=7))
        newest = listener.all(pipe.StepReport)[-1].gauges
        assert newest.totals.steps == 17 and newest.running == 2 and newest.blocks == 128
        assert newest.tokens == 1, "of this step alone"
        await cluster.answer("x", step("x", 6, steps=9))  # of a stream that was slower
        assert listener.all(pipe.StepReport)[-1].gauges.totals.steps == 17
        await cluster.answer("x", LOST)
        await cluster.answer("y", step("y", 6, steps=8))
        newest = listener.all(pipe.StepReport)[-1].gauges
        assert newest.totals.steps == 18 and newest.running == 1 and newest.blocks == 64
        await host.close()

    run(work)


def test_questions_go_to_all_replicas() -> None:
    async def work() -> None:
        _, host, listener = await begin("a", "b")
        host.send(0, pipe.EngineQuestion(1, "reset"))
        host.send(0, pipe.EngineQuestion(2, "kv"))
        host.send(0, pipe.EngineQuestion(0, "ping"))
        await turn()
        answers = {one.number: one.value for one in listener.all(pipe.EngineAnswer)}
        both = {"replicas": {"0": {"freed": 3}, "1": {"freed": 3}}}
        assert answers == {0: {}, 1: {"freed": 6}, 2: both}
        await host.close()

    run(work)
