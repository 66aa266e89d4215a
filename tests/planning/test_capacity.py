"""Queueing on a cost model of steps: against the theory of queues, and by hand."""

import random
from dataclasses import replace
from statistics import mean

import pytest

from flyweight.config import Limits, Settings
from flyweight.describe import SilentListener
from flyweight.errors import ConfigError, EngineError
from flyweight.plan.roofline import StepShape
from flyweight.planning.calibration import LocalEngine
from flyweight.planning.capacity import (
    SHARE,
    Capacity,
    LatencyTargets,
    RatePoint,
    compute_p90,
    find_capacity,
)
from flyweight.planning.capacity_check import (
    LADDER,
    RateCheck,
    ValidatedRate,
    choose_count,
    find_knee,
    measure_around,
)
from flyweight.planning.capacity_plan import plan_limits
from flyweight.planning.capacity_report import make_validation_table, report_capacity
from flyweight.planning.local_server import serve_locally
from flyweight.planning.loop_cost import LoopCost
from flyweight.planning.outline import outline_model
from flyweight.planning.queueing import ArrivalLoad, QueueSimulator, ServedTimes, ServerShape
from flyweight.planning.speed import make_decode
from flyweight.planning.step_cost import CostLine, StepCostModel, fit_steps, make_line, make_prompts

STEP = 0.01
NO_LOOP = LoopCost(0.0, 0.0)


def make_server(seqs: int, blocks: int = 4096) -> ServerShape:
    limits = Limits(
        max_model_len=2048, max_num_seqs=seqs, max_num_batched_tokens=512, block_size=32,
        blocks=blocks, prefix_caching=False,
    )  # fmt: skip
    return ServerShape(limits, 0.2, 3.0)


def constant(seen: StepShape) -> float:
    return STEP


# --- costs of steps ---


def test_a_line_goes_between_points_and_beyond_them() -> None:
    line = CostLine((1.0, 3.0, 7.0), (10.0, 12.0, 20.0))
    wanted = {1: 10, 2: 11, 3: 12, 5: 16, 7: 20, 9: 24}
    assert {n: line.compute_seconds(n) for n in wanted} == wanted
    assert CostLine((2.0,), (6.0,)).compute_seconds(3) == 9.0
    assert make_line({1: 5.0, 2: 4.0, 4: 6.0}) == CostLine((1.0, 2.0, 4.0), (5.0, 5.0, 6.0))


def test_a_step_adds_up() -> None:
    model = StepCostModel(
        CostLine((1.0, 11.0), (1.0, 2.0)), CostLine((1.0, 2.0), (0.5, 0.6)), 1e-3, 1e-4,
        LoopCost(0.25, 0.125),
    )  # fmt: skip
    seen = StepShape(((1, 132), (4, 6)), 2, 138)
    # 5 tokens, 100 positions beyond 32, queries that see 3, 4, 5 and 6 keys, 2 rows, 2 sequences
    assert model.compute_seconds(seen) == pytest.approx(1.4 + 0.1 + 18e-4 + 0.6 + 0.5)


def test_drift_is_the_median_of_what_was_timed() -> None:
    line = CostLine((1.0, 2.0, 4.0), (1.0, 2.0, 4.0))
    then = StepCostModel(line, line, 0.0, 0.0, NO_LOOP)
    now = replace(then, layers=CostLine(line.at, (2.0, 3.0, 40.0)))
    assert now.measure_drift(then) == 2.0


def test_a_linear_model_is_found_again() -> None:
    def layers(seen: StepShape) -> float:
        far = sum(max(0, context - 32) for count, context in seen.chunks if count == 1)
        pairs = sum(n * (2 * c - n + 1) / 2 for n, c in seen.chunks if n > 1)
        return 0.004 + 2e-4 * seen.tokens + 3e-7 * far + 4e-8 * pairs

    found = fit_steps(layers, lambda rows: 1e-3 + 5e-5 * rows, NO_LOOP, (64, 512, 1024))
    assert found.position == pytest.approx(3e-7)
    assert found.pair == pytest.approx(4e-8)
    mixed = StepShape(((1, 700), (1, 90), (100, 300)), 3, 1090)
    for seen in (make_decode(24, 500), StepShape(((512, 1024),), 1, 1024), mixed):
        expected = layers(seen) + 1e-3 + 5e-5 * seen.rows
        assert found.compute_seconds(seen) == pytest.approx(expected, rel=1e-6)


def test_steps_of_many_short_prompts_are_timed() -> None:
    """Prompts of 80 tokens and steps of 512: six whole ones and 32 tokens of another.  A timing
    that is wrong by a tenth at 64 tokens does not move what 512 take.
    """
    assert make_prompts(512, 80) == StepShape(((80, 80),) * 6 + ((32, 32),), 0, 512)
    assert make_prompts(160, 80) == StepShape(((80, 80),) * 2, 0, 160)

    def layers(seen: StepShape) -> float:
        return 1e-4 * seen.tokens * (1.1 if seen.tokens == 64 else 1.0)

    found = fit_steps(layers, lambda rows: 0.0, NO_LOOP, (64, 512, 80))
    assert found.layers.at[-3:] == (128.0, 256.0, 512.0)
    assert found.layers.compute_seconds(512) == pytest.approx(0.0512)
    few = fit_steps(layers, lambda rows: 0.0, NO_LOOP, (2, 512, 80))
    assert few.layers.at[-1] == 160, "two sequences have no more"


# --- queues ---


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_one_seat_is_the_queue_of_theory(busy: float) -> None:
    """Poisson arrivals, one server, a constant service of two steps: requests wait on average
    busy / (2 (1 - busy)) services (Pollaczek and Khinchine).
    """
    service = 2 * STEP
    load = ArrivalLoad(prompt=4, output=2, count=3000, seed=3)
    served = QueueSimulator(make_server(1), constant).run(load, busy / service)
    waited = mean(served.e2el) - service
    assert waited == pytest.approx(service * busy / (2 * (1 - busy)), rel=0.1)


def test_requests_that_come_together_share_steps() -> None:
    """All at once, eight seats: each takes a step for its prompt and one for each further token."""
    load = ArrivalLoad(prompt=3, output=5, count=8)
    served = QueueSimulator(make_server(8), constant).run(load, 1e9)
    assert max(served.e2el) <= (1 + 1 + 4) * STEP + 1e-6  # the first comes alone
    assert served.itl[-1] == pytest.approx(STEP)


def test_the_same_seed_gives_the_same_figures() -> None:
    simulator = QueueSimulator(make_server(16), constant)
    load = ArrivalLoad(prompt=40, output=20, count=50, seed=9)
    assert simulator.run(load, 20) == simulator.run(load, 20)
    other = ArrivalLoad(prompt=40, output=20, count=50, seed=10)
    assert simulator.run(load, 20) != simulator.run(other, 20)


def test_few_blocks_make_requests_wait() -> None:
    load = ArrivalLoad(prompt=60, output=30, count=40)
    roomy = QueueSimulator(make_server(16), constant).run(load, 40)
    tight = QueueSimulator(make_server(16, blocks=16), constant).run(load, 40)
    assert mean(tight.ttft) > mean(roomy.ttft)
    assert len(tight.e2el) == 40, "all are answered"


def test_arrivals_are_poisson() -> None:
    times = ArrivalLoad(1, 2, count=20000, seed=1).draw_arrivals(50)
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert mean(gap * gap for gap in gaps) == pytest.approx(2 / 50**2, rel=0.06)


# --- capacity ---


LOAD, TARGETS = ArrivalLoad(prompt=8, output=6), LatencyTargets(0.2, 0.05)


@pytest.fixture(scope="module")
def found() -> Capacity:
    """Two seats."""
    return find_capacity(QueueSimulator(make_server(2), constant), LOAD, TARGETS)


def test_capacity_is_the_last_rate_that_is_served(found: Capacity) -> None:
    ceiling = 2 / (6 * STEP)  # two seats, six steps each
    assert 0.6 * ceiling < found.rate < 1.05 * ceiling
    assert found.best.met >= SHARE
    assert found.find_binding(TARGETS) == "TTFT"
    assert [point.rate for point in found.points] == sorted(point.rate for point in found.points)
    assert min(point.met for point in found.points) < SHARE


def test_more_seats_serve_more(found: Capacity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyweight.planning.capacity.PRECISION", 1.2)
    more = find_capacity(QueueSimulator(make_server(4), constant), LOAD, TARGETS)
    assert more.rate > 1.5 * found.rate


def test_targets_that_one_request_misses_are_refused() -> None:
    simulator = QueueSimulator(make_server(8), constant)
    for targets, name in ((LatencyTargets(0.005, 1), "ttft"), (LatencyTargets(1, 0.005), "itl")):
        with pytest.raises(ConfigError, match=rf"{name} = '5ms'.*nearest valid: 11ms"):
            find_capacity(simulator, ArrivalLoad(16, 20), targets)
    with pytest.raises(ConfigError, match="ttft = '5000us' cannot be met"):
        find_capacity(simulator, ArrivalLoad(16, 20), LatencyTargets(0.005, 1, ("5000us", "1s")))


def test_a_longer_time_between_tokens_than_to_the_first_is_no_contradiction() -> None:
    simulator = QueueSimulator(make_server(8), constant)
    assert find_capacity(simulator, ArrivalLoad(16, 20), LatencyTargets(0.2, 1.0)).rate > 0


def test_points_and_users(found: Capacity) -> None:
    draw = random.Random(0)
    values = tuple(draw.random() for _ in range(101))
    assert compute_p90(values) == pytest.approx(sorted(values)[90])
    served = ServedTimes((1.0, 3.0), (0.1, 0.2), (2.0, 4.0), 2.0)
    targets = LatencyTargets(2.0, 1.0)
    point = RatePoint.of(1.0, ArrivalLoad(1, 5), served, targets)
    assert (point.concurrency, point.output, point.met) == (3.0, 5.0, 0.5)
    report = report_capacity(found, LOAD, TARGETS, 10.0, ())
    [table] = report.tables
    assert len(table.rows) == 8 and table.strong == {4}
    assert "requests/s" in table.notes[0] and "TTFT fails first" in table.notes[0]


@pytest.mark.long
def test_a_server_is_sent_the_simulated_load() -> None:
    """Functional: times are of this machine, and no test compares them."""
    settings = Settings.of(model="stories", threads=1, max_num_seqs=4, max_model_len=64)
    simulator, rounds = QueueSimulator(make_server(4), constant), list[tuple[str, int, int]]()
    with serve_locally(settings) as server:
        check = RateCheck(
            server, simulator, TARGETS, pytest.fail, lambda *round: rounds.append(round)
        )
        for rate in (50.0, 200.0):
            seen = check.measure(ArrivalLoad(prompt=8, output=4, count=6), rate)
            assert (seen.predicted.rate, seen.measured.rate, seen.failed) == (rate, rate, 0)
            assert seen.measured.ttft > 0 and seen.measured.output > 0 and seen.client > 0
        with pytest.raises(EngineError, match="no request was answered"):
            check.measure(ArrivalLoad(prompt=80, output=4, count=2), 1e3)
    assert rounds[-1][1:] == (2, 2)


def test_a_server_that_does_not_start_says_why() -> None:
    refused = pytest.raises(EngineError, match=r"did not start: .*nowhere")
    with refused, serve_locally(Settings(model="/nowhere/model.gguf")):
        pass


POINT = RatePoint(1.0, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0)


def test_the_knee_is_between_two_rates() -> None:
    points = [replace(POINT, rate=rate, met=met) for rate, met in ((1, 1.0), (2, 0.95), (4, 0.7))]
    assert find_knee(points) == pytest.approx(2 + 2 * 0.05 / 0.25)
    assert find_knee(points[:2]) is None
    slower = [replace(one, rate=one.rate / 2) for one in points]
    pairs = zip(points, slower, strict=True)
    table = make_validation_table([ValidatedRate(*pair) for pair in pairs], 3.0, 1.5)
    assert "predicted 3 requests/s (2.4 by these loads), measured 1.2;" in table.notes[0]
    assert "predicted ÷ measured 2.50" in table.notes[0] and len(table.notes) == 3
    assert "were 1.50 times" in table.notes[2]
    beyond = ValidatedRate(POINT, POINT, failed=2, why="queue full")
    lines = make_validation_table([beyond], 3.0, 1.0).notes
    assert "measured above 1." in lines[0] and "2 there, as in queue full" in lines[3]


@pytest.mark.parametrize("knee, more", [(1.0, 0), (0.45, 1), (0.01, 3), (1.7, 1), (9.0, 3)])
def test_rates_are_added_until_the_knee_is_among_them(knee: float, more: int) -> None:
    """Of a capacity of 10; below half of it, and above 1.3 of it, by factors of 0.6 and 1.4."""

    def measure(rate: float) -> ValidatedRate:
        seen = replace(POINT, rate=rate, met=1.0 if rate <= 10 * knee else 0.5)
        return ValidatedRate(seen, seen)

    rates = [one.measured.rate for one in measure_around(10.0, measure)]
    assert len(rates) == len(LADDER) + more and rates == sorted(rates)


def test_loads_last_as_in_the_prediction(found: Capacity) -> None:
    """One request alone takes 0.06 s, 20 times the target of 0.2 s is 4 s, and 5 s is the least; a
    target of 1 s makes it 20 s.
    """
    assert choose_count(100.0, found, LOAD, TARGETS) == 500
    assert choose_count(100.0, found, LOAD, LatencyTargets(1.0, 1.0)) == 2000
    assert choose_count(0.1, found, LOAD, TARGETS) == 20


def test_limits_are_those_of_a_server() -> None:
    settings = Settings.of(model="stories", threads=1, max_num_seqs=8)
    outline = outline_model(settings, SilentListener())
    limits = plan_limits(settings, outline, LocalEngine.of(settings, outline))
    assert (limits.max_model_len, limits.max_num_seqs) == (512, 8)
    assert limits.blocks >= 16
