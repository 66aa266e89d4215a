"""Steps that raise in every place, on an engine of a few sequences: what is returned stays true."""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import pytest

from flyweight.build import LoadedModel, build
from flyweight.config import Settings
from flyweight.driver.driver import BROKE, Driver
from flyweight.driver.progress import CallProgress
from flyweight.engine.engine import Engine
from flyweight.params.tasks import BeamSearchParams, PoolingParams
from flyweight.types import Event, Finish, Request, SamplingParams

PLAIN = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    patience = CallProgress()
    drafts = {"num_speculative_tokens": 2, "adaptive": False}
    yield build(Settings.of(speculative_config=drafts, max_num_seqs=8, threads=1), patience)
    patience.stop()


def requests() -> list[Request]:
    """Plain ones, several choices, a search, a vector, and one that is drafted for."""
    known = tuple(range(20, 45))
    again = (30, 31, 32, 33) * 8
    return [
        Request("plain", known, PLAIN, max_tokens=12),
        Request("drafted", again, PLAIN, max_tokens=20),
        Request("several", known[:9], SamplingParams(n=2), max_tokens=12, seed=3),
        Request("search", known[:5], PLAIN, max_tokens=5, beam=BeamSearchParams(2, 5)),
        Request("vector", known * 3, PLAIN, max_tokens=0, pooling=PoolingParams("mean")),
    ]


def run(engine: Engine, spoil: Callable[[int], None]) -> dict[tuple[str, int], Any]:
    """Every choice's tokens or vector, and how it ended; `spoil` is called before each step."""
    driver = Driver(engine, lambda error: None)
    for request in requests():
        driver.add(request)
    found: dict[tuple[str, int], Any] = {}
    for step in range(1000):
        if not engine.busy:
            break
        spoil(step)
        try:
            events = driver.step()
        except Exception as error:  # as the worker does
            events = driver.recover(error)
        for event in events:
            take(found, event)
        engine.scheduler.pool.check_integrity(
            seq.table for group in engine.scheduler.by_id.values() for seq in group
        )
    assert not engine.busy and not engine.scheduler.by_id
    assert not engine.beams.searches and not engine.pooling.sums
    return found


def take(found: dict[tuple[str, int], Any], event: Event) -> None:
    tokens, finish, vector = found.get((event.id, event.index), ((), None, None))
    assert finish is None, "something after the end"
    vector = None if event.vector is None else event.vector.tobytes()
    found[event.id, event.index] = (*tokens, *event.tokens), event.finish, vector


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool) -> None:
    """Has a method raise the next time it is called, before or after it did its work."""
    method = getattr(owner, name)

    def broken(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        if after:
            method(*args, **named)
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(owner, name, broken)


PLACES = ["scheduler.schedule", "runner.submit", "runner.wait", "_verify", "scheduler.commit",
          "scheduler._finish", "beams.finish", "pooling.finish", "pooling.take", "metrics.count",
          "_forget", "drafts.propose", "drafts.calls.drafter.propose"]  # fmt: skip


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_events_stay_true_wherever_a_step_raises(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, place: str, after: bool
) -> None:
    engine = loaded.engine
    whole = run(engine, lambda step: None)
    assert {finish for _, finish, _ in whole.values()} <= {Finish.LENGTH, Finish.STOP}
    *path, name = place.split(".")
    owner: Any = reduce(getattr, path, engine)
    for at in (0, 2, 6):
        hit = []

        def spoil(step: int, at: int = at, hit: list[int] = hit) -> None:
            if step == at:
                break_once(monkeypatch, owner, name, after)
                hit.append(step)

        found = run(engine, spoil)
        assert hit and found.keys() == whole.keys()
        for choice, (tokens, finish, vector) in found.items():
            if finish is Finish.ERROR:
                assert tokens == whole[choice][0][: len(tokens)]
            else:
                assert (tokens, finish, vector) == whole[choice], choice
        monkeypatch.undo()


def test_what_was_never_reported_is_ended_with_an_error(loaded: LoadedModel) -> None:
    """A choice that ended in a step whose news are lost must not be waited for."""
    engine = loaded.engine
    driver = Driver(engine, lambda error: None)
    driver.add(Request("lost", (30, 31, 32), PLAIN, max_tokens=1))
    assert engine.step()[0].finish is Finish.LENGTH
    (event,) = driver.recover(ZeroDivisionError())
    assert (event.id, event.finish, event.error) == ("lost", Finish.ERROR, BROKE)
    assert driver.recover(ZeroDivisionError()) == []
