"""The state of several engines as that of one: running sums are those of all replicas."""

from dataclasses import fields
from random import Random

from flyweight.engine.metrics import EngineMetrics
from flyweight.server.pipe import Gauges
from flyweight.server.replicas.gauges import ReplicaGauges


def test_running_sums_are_those_of_all_replicas() -> None:
    chance, found = Random(7), ReplicaGauges()
    known: dict[str, Gauges] = {}
    ended, expected = (
        EngineMetrics(),
        found.take("none", Gauges(0, 0, 0, 0, EngineMetrics(), 0, 0, 0)),
    )
    for turn in range(400):
        name = chance.choice("abcdef")
        before = known.get(name)
        if before is not None and chance.random() < 0.1:
            found.remove(name)
            for one in fields(EngineMetrics):
                if one.name != "drafting_ended":
                    total = getattr(ended, one.name) + getattr(before.totals, one.name)
                    setattr(ended, one.name, total)
            del known[name]
            continue
        totals = EngineMetrics(*(
            (getattr(before.totals, one.name) if before else 0) + chance.randrange(9)
            for one in fields(EngineMetrics)
        ))  # fmt: skip
        totals.drafting_ended = int(
            turn % 50 == 49 or bool(before and before.totals.drafting_ended)
        )
        now = Gauges(
            chance.randrange(9), chance.randrange(9), 64, chance.randrange(64), totals,
            chance.randrange(9), 0.5, (before.busy if before else 0.0) + 0.25,
            swapped=chance.randrange(99),
        )  # fmt: skip
        known[name], last = now, expected
        expected = found.take(name, now)
        for one in fields(EngineMetrics):
            parts = [getattr(part.totals, one.name) for part in known.values()]
            assert getattr(expected.totals, one.name) == sum(parts) + getattr(ended, one.name)
        for name in ("running", "waiting", "blocks", "free_blocks", "swapped"):
            assert getattr(expected, name) == sum(getattr(one, name) for one in known.values())
        assert expected.tokens == now.tokens and expected.busy >= last.busy
    assert ended.steps, "replicas have ended"


def test_a_replica_that_is_gone_ends_no_drafting() -> None:
    found = ReplicaGauges()
    ended = EngineMetrics(steps=1, drafting_ended=1, drafts=5)
    idle = Gauges(0, 0, 8, 8, EngineMetrics(steps=1), 0, 0.0, 0.0, (3, 1))
    assert found.take("a", Gauges(1, 0, 8, 4, ended, 1, 0.1, 0.1, (2,))).totals.drafting_ended == 1
    assert found.take("b", idle).accepted == (5, 1)
    found.remove("a")
    totals = found.take("b", idle).totals
    assert totals.drafting_ended == 0 and totals.drafts == 5
