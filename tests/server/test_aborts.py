"""Requests whose reader goes while the engine's own bookkeeping fails: the loop goes on."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from flyweight.build import LoadedModel, build
from flyweight.config import Settings
from flyweight.driver.progress import CallProgress
from flyweight.server import pipe
from flyweight.server.worker.loop import READ, Worker
from flyweight.types import Finish, Request, SamplingParams

PLAIN = SamplingParams(temperature=0)
SECRET = "what a prompt" + " says"  # in no line of the source
GONE, STAYS = "gone", "stays"


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    patience = CallProgress()
    yield build(Settings.of(max_num_seqs=4, threads=1), patience)
    patience.stop()


class Ends:
    """An engine of a worker, and the front end's side of its pipe."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.ours, theirs = socket.socketpair()
        self.frames = pipe.PipeFrames(pipe.ToFront)
        self.process = Worker(theirs)
        self.worker = self.process.host(0, loaded, pipe.EngineSetup({}, 0.2))

    def reported(self) -> list[Any]:
        return [message for _, message in self.frames.push(self.ours.recv(READ))]

    def begin(self) -> None:
        for id in (GONE, STAYS):
            request = Request(id, tuple(range(20, 40)), PLAIN, max_tokens=12)
            self.worker.take(pipe.Submit.of(request))

    def finished(self) -> list[int]:
        """The tokens of the one that stays, once all is over."""
        tokens = self.steps(200)
        assert not self.worker.engine.busy and not self.worker.arrived
        return tokens

    def steps(self, most: int) -> list[int]:
        """The same of so many steps."""
        tokens: list[int] = []
        for _ in range(most):
            if not self.worker.engine.busy:
                break
            self.worker.run_step()
            for message in self.reported():
                news = message.news if isinstance(message, pipe.StepReport) else ()
                for one in (n.to_event() for n in news if n.id == STAYS):
                    tokens += one.tokens
                    assert one.finish in (None, Finish.LENGTH)
        return tokens


@pytest.fixture
def ends(loaded: LoadedModel) -> Iterator[Ends]:
    made = Ends(loaded)
    yield made
    for line in (made.ours, made.process.line):
        line.close()


def breaks(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """A method raises once, before or after its work."""
    method = getattr(owner, name)

    def broken(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        if after:
            method(*args, **named)
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", ["abort", "_finish", "pool.release"])
@pytest.mark.parametrize("stopped", [False, True])
def test_an_end_that_raises_affects_no_other(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, capfd: Any, place: str, after: bool, stopped: bool
) -> None:
    ends.begin()
    expected = ends.finished()
    ends.begin()
    kept = ends.steps(3)
    scheduler = ends.worker.engine.scheduler
    *path, name = place.split(".")
    owner = scheduler.pool if path else scheduler
    breaks(monkeypatch, owner, name, after=after)
    ends.worker.take(pipe.Abort(GONE, 0 if stopped else None, stopped))
    assert list(scheduler.by_id) == [STAYS]
    scheduler.pool.check_integrity(s.table for group in scheduler.by_id.values() for s in group)
    assert ends.reported() and GONE not in ends.worker.arrived
    assert kept and kept + ends.finished() == expected
    said = capfd.readouterr().err
    assert "ZeroDivisionError" in said and SECRET not in said


def test_a_question_that_cannot_be_answered_ends_nothing(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch, ends.worker.engine, "stats", after=False)
    ends.worker.take(pipe.EngineQuestion(7, "kv"))
    (answer,) = ends.reported()
    assert isinstance(answer, pipe.EngineAnswer) and answer.number == 7 and not answer.value
    ends.worker.take(pipe.EngineQuestion(8, "kv"))
    (answer,) = ends.reported()
    assert answer.number == 8 and answer.value["sequences"] == []
