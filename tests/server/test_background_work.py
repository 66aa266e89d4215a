"""The time of work between steps counts in the step budget."""

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.build import build
from flyweight.config import Settings
from flyweight.driver.background import Background
from flyweight.server import pipe
from flyweight.server.worker import loop
from flyweight.server.worker.loop import Worker
from flyweight.types import Request, SamplingParams

ASKED = Request("it", tuple(range(20, 40)), SamplingParams(temperature=0), max_tokens=2)


def test_background_work_counts_as_part_of_the_step() -> None:
    loaded = build(Settings.of(max_num_seqs=1, threads=1, max_model_len=64))
    ours, theirs = socket.socketpair()
    worker: Any = Worker(theirs).host(0, loaded, pipe.EngineSetup({}, 0.2))
    noted: list[float] = []
    worker.controller.record = lambda prompt, decodes, seconds, drafts: noted.append(seconds)
    slow = SimpleNamespace(step=lambda: time.sleep(0.1), wanted=False)
    worker.background = Background([slow, slow])
    worker.take(pipe.Submit.of(ASKED))
    worker.run_step()
    ours.close()
    theirs.close()
    (seconds,) = noted
    assert seconds >= worker.steps[-1]["seconds"] + 0.2


def test_an_engine_that_is_unloaded_while_it_loads_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer comes once it is gone, and its memory is returned."""
    trimmed: list[int] = []
    monkeypatch.setattr(loop, "trim_heap", lambda: trimmed.append(len(worker.loaders)))
    ours, theirs = socket.socketpair()
    worker = Worker(theirs)
    given = {"max_num_seqs": 1, "threads": 1, "max_model_len": 64}
    worker.take(3, pipe.EngineSetup(given, 0.2))
    worker.take(3, pipe.Unload())
    found, frames = list[object](), pipe.PipeFrames(pipe.ToFront)
    while pipe.Unloaded() not in found:
        worker._read()
        ours.setblocking(False)
        try:
            found += [message for number, message in frames.push(ours.recv(1 << 20))]
        except BlockingIOError:
            continue
    ours.close()
    theirs.close()
    assert trimmed == [0]
    assert not any(isinstance(one, pipe.Ready) for one in found)
    assert not worker.engines and not worker.loaders and not worker.process.ledger.reserved
