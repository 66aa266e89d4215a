"""Pairs of runs: their order, when they end, what is refused, and what is made of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_sides import JOB, FakeClock, FakeSide, cycle_times, make_technique

from flyweight.errors import ConfigError
from flyweight.prove.outcome import ProveOutcome, UnequalWork, to_document
from flyweight.prove.runner import ProvePlan, prove
from flyweight.prove.technique import ProveJob, Side, Technique

Change = Callable[[FakeSide], None]


class Bench:
    """Fake sides of a technique, and the runs they were asked for."""

    def __init__(self, *off: float, change: Change = lambda side: None) -> None:
        self.clock, self.take, self.change = FakeClock(), cycle_times(*off), change
        self.sides: list[FakeSide] = []

    def open(self, technique: Technique, job: ProveJob, name: str) -> Side:
        side = FakeSide(name, self.clock, self.take)
        self.change(side)
        self.sides.append(side)
        return side

    def prove(self, plan: ProvePlan, exact: bool = True) -> ProveOutcome:
        return prove(make_technique(exact), JOB, plan, self.open, clock=self.clock)


def test_a_steady_speed_up_is_known_after_the_least_pairs() -> None:
    found = Bench(2.0).prove(ProvePlan(seconds=1000, least=5))
    assert len(found.pairs) == 5
    assert (found.speed.median, found.verdict, found.equal) == (2.0, "keep", 1.0)
    assert found.notes == ("cut",)


def test_pairs_are_measured_until_the_time_is_up() -> None:
    bench = Bench(1.0, 3.0)  # never tight
    found = bench.prove(ProvePlan(seconds=30))
    assert found.speed.width > 0.5
    assert 8 <= len(found.pairs) <= 12
    assert bench.clock.now <= 30 + 4


def test_fewer_requests_are_made_where_pairs_do_not_fit_the_time() -> None:
    """A whole pair takes 3 s.  A tenth of it to warm up leaves 5.7 s: six pairs of a quarter."""
    found = Bench(2.0).prove(ProvePlan(seconds=6))
    assert found.share == 0.25
    assert found.notes[-1].startswith("1/4 of the requests")


def test_no_fewer_requests_are_made_than_show_the_effect() -> None:
    bench = Bench(2.0)
    technique = replace(make_technique(), least_share=0.5)
    found = prove(technique, JOB, ProvePlan(seconds=1), bench.open, clock=bench.clock)
    assert (found.share, len(found.pairs)) == (0.5, 2)


def test_all_requests_are_made_where_the_planned_pairs_fit() -> None:
    """As above, where two pairs are enough: 5.4 s are left, and two of 3 s do not fit; of 6.4 s
    they do.
    """
    technique = replace(make_technique(), planned=2)
    for seconds, share in ((5.7, 0.5), (6.7, 1.0)):
        bench = Bench(2.0)
        found = prove(technique, JOB, ProvePlan(seconds=seconds), bench.open, clock=bench.clock)
        assert found.share == share


def test_a_share_may_be_given() -> None:
    assert Bench(2.0).prove(ProvePlan(seconds=6, share=0.5)).share == 0.5


def test_two_pairs_are_measured_even_if_the_time_is_up() -> None:
    assert len(Bench(2.0).prove(ProvePlan(seconds=0)).pairs) == 2


def test_who_goes_first_changes_and_a_warm_up_is_not_counted() -> None:
    bench = Bench(2.0)
    order: list[str] = []
    take = bench.take

    def note(side: str, round: int, share: float) -> float:
        order.append(f"{side}{round}")
        return take(side, round, share)

    bench.take = note
    bench.prove(ProvePlan(seconds=1000, least=3))
    assert order == ["off-1", "on-1", "off0", "on0", "on1", "off1", "off2", "on2"]


def test_sides_are_closed() -> None:
    bench = Bench(2.0)
    bench.prove(ProvePlan(seconds=1000))
    assert [side.closed for side in bench.sides] == [True, True]


def test_a_side_is_closed_for_the_other_where_memory_holds_one() -> None:
    bench = Bench(2.0)
    inner = bench.open

    def refuse(technique: Technique, job: ProveJob, name: str) -> Side:
        if any(not side.closed for side in bench.sides):
            raise ConfigError("no memory is left")
        return inner(technique, job, name)

    bench.open = refuse  # type: ignore[method-assign]
    found = bench.prove(ProvePlan(seconds=1000, least=3))
    assert len(found.pairs) == 3 and all(side.closed for side in bench.sides)
    assert all(side.runs[0][0] == -1 for side in bench.sides), "each load is warmed up"
    assert "memory holds one side at a time: each is loaded for every run" in found.notes


def test_unequal_work_is_refused() -> None:
    def lose(side: FakeSide) -> None:
        side.requests -= side.name == "on"

    with pytest.raises(UnequalWork, match="fake: off did 10 requests, on did 9; unequal work"):
        Bench(2.0, change=lose).prove(ProvePlan(seconds=1000))


def test_a_verdict_of_few_pairs_is_not_certain() -> None:
    few, enough = (Bench(2.0).prove(ProvePlan(seconds=s)) for s in (0, 1000))
    assert (len(few.pairs), few.certain, few.verdict, few.shown_verdict) == (
        2, False, "keep", "keep?"
    )  # fmt: skip
    assert (len(enough.pairs), enough.certain, enough.shown_verdict) == (6, True, "keep")
    assert [to_document(one)["certain"] for one in (few, enough)] == [False, True]
    broken = Bench(2.0, change=change_answer).prove(ProvePlan(seconds=0))
    assert (broken.certain, broken.shown_verdict) == (True, "harmful"), "answers tell"


def change_answer(side: FakeSide) -> None:
    side.answer = (1, 3) if side.name == "on" else (1, 2)


def test_other_answers_are_harmful_where_the_same_are_promised() -> None:
    found = Bench(2.0, change=change_answer).prove(ProvePlan(seconds=1000))
    assert (found.equal, found.verdict) == (0.5, "harmful")


def test_other_answers_are_reported_where_none_are_promised() -> None:
    found = Bench(2.0, change=change_answer).prove(ProvePlan(seconds=1000), exact=False)
    assert (found.equal, found.verdict) == (0.5, "keep")


def test_a_metric_may_be_chosen() -> None:
    found = Bench(2.0).prove(ProvePlan(seconds=1000, metric="ttft"))
    assert found.seed == "", "that is of another metric"
    assert found.list_times("off") == [0.5] * 6  # the median of a half, a quarter, an eighth


def test_a_metric_that_the_workload_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="metric = 'itl' is not measured by fake; nearest valid"):
        Bench(2.0).prove(ProvePlan(seconds=1000, metric="itl"))


def test_the_document_has_both_sides() -> None:
    document = to_document(Bench(2.0).prove(ProvePlan(seconds=1000)))
    assert document["speedup"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert document["off"]["requests_per_s"] == 5 and document["on"]["requests_per_s"] == 10
    assert document["work"] == {"requests": 10, "prompt tokens": 100, "output tokens": 20}
    assert document["on"]["joules"] is None and document["on"]["peak_bytes"] == 1 << 20
