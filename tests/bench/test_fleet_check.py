"""bench/fleet_check.py: processes serve the requests that are simulated.  No time is held to a
bound.
"""

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flyweight.bench.serving.traces import TraceRequest
from flyweight.planning.replica_load import TraceLoad
from flyweight.planning.replicas import TraceScale

BENCH = Path(__file__).parents[2] / "bench"
OPTIONS = argparse.Namespace(seconds=20.0, busy=0.6, slow=1.0)
FACTOR, TALKS, TURNS = 32, 40, 3


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Replicas import it by its name, too."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCH)])
    return importlib.import_module("fleet_check")


def make_load(check: ModuleType) -> TraceLoad:
    """Conversations whose turns begin with the turn before."""
    trace = [
        TraceRequest(
            float(40 * turn + talk), 2048 * (turn + 1), 320,
            tuple(100 * talk + i for i in range(4 * (turn + 1))),
        )
        for turn in range(TURNS) for talk in range(TALKS)
    ]  # fmt: skip
    return TraceLoad.of(trace, TraceScale(FACTOR), check.LIMITS.max_model_len, None)


def test_requests_keep_replicas_as_busy_as_wanted(check: ModuleType) -> None:
    load, cost = make_load(check), check.SleepCost(OPTIONS.slow)
    found = check.draw_requests(load, 2, 20.0, OPTIONS)
    shares = [check.simulate(some, 2, cost)[-1] for some in (found, check.stretch(found, 0.5))]
    assert shares[0] == pytest.approx(OPTIONS.busy, rel=0.05) and shares[1] > 1.2 * shares[0]
    later = check.delay(found, 0.5, seed=1)
    assert [one.tokens for one in later] == [one.tokens for one in found]
    assert all(0 <= b.at - a.at <= 0.5 for a, b in zip(found, later, strict=True))


def test_processes_serve_every_request(check: ModuleType) -> None:
    requests = check.stretch(check.draw_requests(make_load(check), 2, 6.0, OPTIONS), 0.05)
    front = check.FrontEnd(2, check.SleepCost(0.05))
    busy = front.run(requests)
    assert len(front.records) == len(requests) > 6
    for one, record in zip(requests, front.records, strict=True):
        assert (record.prompt, record.output) == (len(one.tokens), one.output)
        assert one.at <= record.first <= record.last
        assert record.cached in range(0, record.prompt, check.LIMITS.block_size)
    assert min(front.lates) >= 0 and len(busy) == 2
    assert front.longer > -1e-9, "no step is shorter than it costs"
    assert len(check.summarize(front.records, busy)) == len(check.FIGURES)
