"""The time of work between steps counts in the step budget."""

import socket
import time
from types import SimpleNamespace
from typing import Any

from flyweight.build import build
from flyweight.config import Settings
from flyweight.driver.background import Background
from flyweight.server import pipe
from flyweight.server.worker.loop import Worker
from flyweight.types import Request, SamplingParams

ASKED = Request("it", tuple(range(20, 40)), SamplingParams(temperature=0), max_tokens=2)


def test_background_work_counts_as_part_of_the_step() -> None:
    loaded = build(Settings.of(max_num_seqs=1, threads=1, max_model_len=64))
    ours, theirs = socket.socketpair()
    worker: Any = Worker(theirs).host(0, loaded, pipe.EngineSetup({}, 0.2))
    noted: list[float] = []
    worker.controller.record = lambda prompt, decodes, seconds: noted.append(seconds)
    slow = SimpleNamespace(step=lambda: time.sleep(0.1), wanted=False)
    worker.background = Background([slow, slow])
    worker.take(pipe.Submit.of(ASKED))
    worker.run_step()
    ours.close()
    theirs.close()
    (seconds,) = noted
    assert seconds >= worker.steps[-1]["seconds"] + 0.2
