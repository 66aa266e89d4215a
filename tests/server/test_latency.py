"""What is predicted of requests, from the steps and the requests before them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from flyweight.engine.metrics import EngineMetrics
from flyweight.server.engine_client import EngineStream
from flyweight.server.latency import (
    FARTHEST,
    FRESH,
    LEAST,
    Backlog,
    Correction,
    Forecast,
    LatencyModel,
    RequestDemand,
    measure_backlog,
)
from flyweight.server.pipe import Gauges

IDLE = Backlog(0, 0, 4)
DEMAND = RequestDemand(100, 1, 11)


def gauges(tokens: int, prompt_tokens: int, seconds: float, **more: Any) -> Gauges:
    given = {"running": 1, "waiting": 0, "blocks": 100, "free_blocks": 50, **more}
    return Gauges(totals=EngineMetrics(), busy=0.0, tokens=tokens, seconds=seconds,
                  prompt_tokens=prompt_tokens, **given)  # fmt: skip


def model() -> LatencyModel:
    """An engine whose decode steps take 10 ms, and 100 prompt tokens 200 ms."""
    found = LatencyModel()
    for _ in range(5):
        found.record_step(gauges(100, 100, 0.2))
        found.record_step(gauges(1, 0, 0.01))
    return found


def foretell(
    found: LatencyModel, backlog: Backlog = IDLE, demand: RequestDemand = DEMAND
) -> Forecast:
    made = found.forecast(backlog, demand)
    assert made is not None
    return made


def test_nothing_is_known_before_both_kinds_of_steps() -> None:
    found = LatencyModel()
    assert found.forecast(IDLE, DEMAND) is None
    found.record_step(gauges(100, 100, 0.2))
    found.record_step(gauges(0, 0, 0.5))  # a step of nothing, which is no decode
    assert found.forecast(IDLE, DEMAND) is None
    found.record_step(gauges(1, 0, 0.01))
    assert found.forecast(IDLE, DEMAND) is not None and not found.known


def test_a_prediction_takes_requests_that_have_ended() -> None:
    found = model()
    for count in range(LEAST):
        assert not found.known, count
        found.record_request(foretell(found), 0.2, 0.1, 11)
    assert found.known
    other = model()
    for _ in range(LEAST):
        other.record_request(None, 0.2, 0.1, 11)  # begun while nothing was known
    assert not other.known


def test_a_prediction_is_fresh_for_a_minute() -> None:
    """What is refused is not measured, so a wrong prediction would last for ever."""
    now = [100.0]
    found = LatencyModel(lambda: now[0])
    for tokens, prompts in ((100, 100), (1, 0)):
        found.record_step(gauges(tokens, prompts, 0.1))
    assert not found.fresh
    for _ in range(LEAST):
        found.record_request(foretell(found), 0.2, 0.1, 11)
    now[0] += FRESH
    assert found.fresh
    now[0] += 1
    assert found.known and not found.fresh
    found.record_step(gauges(1, 0, 0.1))
    assert found.fresh


def test_an_idle_engine_takes_its_own_prompt_and_answer() -> None:
    made = foretell(model())
    assert made.ttft == pytest.approx(0.2)
    assert made.e2el == pytest.approx(0.2 + 10 * 0.01)
    assert (made.alone_ttft, made.alone_e2el) == (made.ttft, made.e2el)
    assert made.prefill == made.ttft and made.decode == pytest.approx(0.1)


def test_prompts_before_it_are_computed_first() -> None:
    found = model()
    made = foretell(found, Backlog(300, 3, 4))
    alone = foretell(found)
    # four chunks of 100 tokens, each with three decodes
    each = found._price_decodes(3)
    assert made.ttft == pytest.approx(4 * (0.2 + each))
    assert made.prefill == pytest.approx(0.2 + each), "once it starts, it computes its own"
    assert made.alone_ttft == alone.ttft


def test_where_all_seats_are_taken_answers_must_end() -> None:
    found = model()
    for _ in range(4):
        found.record_answer(21, stopped=False)
    waits = foretell(found, Backlog(0, 7, 4)).ttft - foretell(found, Backlog(0, 4, 4)).ttft
    assert waits == pytest.approx(3 * 21 * found._price_decodes(4) / 4)
    assert foretell(found, Backlog(0, 3, 4)).ttft < foretell(found, Backlog(0, 4, 4)).ttft


def test_answers_are_as_long_as_those_that_ended_by_themselves() -> None:
    found = model()
    assert found.expect(50) == 50, "nothing is known"
    found.record_answer(40, stopped=False)
    assert found.expect(50) == 50, "as long as was requested"
    found.record_answer(20, stopped=True)
    assert (found.expect(50), found.expect(5)) == (20, 5)


def test_predictions_are_corrected_by_what_was_measured() -> None:
    """Twice as late and half as quick as calculated: so are the next ones."""
    found = model()
    before = foretell(found)
    for _ in range(LEAST):
        found.record_request(foretell(found), 2 * before.raw_ttft, 20 * before.raw_step, 11)
    after = foretell(found)
    assert after.ttft == pytest.approx(2 * before.ttft)
    assert after.decode == pytest.approx(2 * before.decode)
    assert (after.raw_ttft, after.raw_step) == (before.raw_ttft, before.raw_step)


@pytest.mark.parametrize(
    ("measured", "factor"), [(1.5, 1.5), (1000.0, FARTHEST), (0.0, 1 / FARTHEST)]
)
def test_a_correction_is_bounded(measured: float, factor: float) -> None:
    one = Correction()
    assert one.factor == 1.0
    one.record(measured, 1.0)
    assert one.factor == pytest.approx(factor)


def test_new_speeds_are_learned() -> None:
    """Other work on the machine: after some steps, the old times hardly count."""
    found = model()
    for _ in range(200):
        found.record_step(gauges(100, 100, 0.6))
        found.record_step(gauges(1, 0, 0.03))
    made = foretell(found)
    assert made.ttft == pytest.approx(0.6, rel=0.01)
    assert made.decode == pytest.approx(0.3, rel=0.01)


def test_prompts_cost_what_a_step_takes_beyond_its_decodes() -> None:
    found = LatencyModel()
    for _ in range(5):
        found.record_step(gauges(1, 0, 0.01))
    for _ in range(5):
        found.record_step(gauges(101, 100, 0.21))
    assert foretell(found).ttft == pytest.approx(0.2)


def stream(tokens: int, n: int = 1, seen: bool = False) -> EngineStream:
    request = SimpleNamespace(tokens=(5,) * tokens, params=SimpleNamespace(n=n), width=1)
    collector: Any = SimpleNamespace(request=request)
    made = EngineStream(collector, asyncio.Event())
    made.seen = {0: 1.0} if seen else {}
    return made


def test_the_backlog_is_what_has_no_first_token() -> None:
    client: Any = SimpleNamespace(
        streams={"a": stream(30, seen=True), "b": stream(20), "c": stream(7, n=3)},
        facts={"max_num_seqs": 8}, gauges=None,
    )  # fmt: skip
    assert measure_backlog(client) == Backlog(27, 5, 8)
    client.gauges = gauges(1, 0, 0.1, running=2, waiting=3, free_blocks=50)
    assert measure_backlog(client).seats == 8, "what waits has not been looked at yet"
    client.gauges = gauges(1, 0, 0.1, running=2, waiting=3, free_blocks=4)
    assert measure_backlog(client).seats == 2, "memory holds no more"
