"""Which engine computes the next step."""

import random

import pytest

from flyweight.server.worker.shares import StepShares


def run(
    shares: StepShares, busy: list[int], seconds: dict[int, float], steps: int
) -> dict[int, float]:
    """Time by engine, after so many steps that take so long."""
    spent = dict.fromkeys(seconds, 0.0)
    for _ in range(steps):
        chosen = shares.choose(busy)
        assert chosen is not None
        shares.charge(chosen, seconds[chosen])
        spent[chosen] += seconds[chosen]
    return spent


@pytest.mark.parametrize("weights", [(30, 70), (1, 1), (1, 9)])
@pytest.mark.parametrize("seconds", [(0.01, 0.01), (0.2, 0.003), (0.001, 0.1)])
def test_time_is_shared_by_weight(weights: tuple[int, int], seconds: tuple[float, float]) -> None:
    shares = StepShares()
    for engine, weight in enumerate(weights):
        shares.add(engine, weight)
    spent = run(shares, [0, 1], dict(enumerate(seconds)), 4000)
    assert spent[0] / sum(spent.values()) == pytest.approx(weights[0] / sum(weights), abs=0.01)


def test_an_idle_engine_saves_no_time_up() -> None:
    shares = StepShares()
    shares.add(0, 1)
    shares.add(1, 1)
    run(shares, [0], {0: 0.01}, 1000)
    spent = run(shares, [0, 1], {0: 0.01, 1: 0.01}, 10)
    assert spent[0] == pytest.approx(spent[1])


def test_one_engine_alone_has_all_the_time() -> None:
    shares = StepShares()
    shares.add(3, 0.1)
    assert shares.choose([]) is None
    assert shares.choose([3]) == 3
    shares.remove(3)
    assert shares.choose([]) is None


def test_random_work_never_starves_an_engine() -> None:
    rng = random.Random(1)
    shares = StepShares()
    weights = {0: 1.0, 1: 5.0, 2: 10.0}
    for engine, weight in weights.items():
        shares.add(engine, weight)
    waited = dict.fromkeys(weights, 0.0)
    for _ in range(20_000):
        busy = [0, *(engine for engine in (1, 2) if rng.random() < 0.8)]
        chosen = shares.choose(busy)
        assert chosen in busy
        seconds = rng.uniform(0.001, 0.05)
        shares.charge(chosen, seconds)
        for engine in busy:
            waited[engine] = 0.0 if engine == chosen else waited[engine] + seconds
        assert waited[0] < 0.05 * (sum(weights.values()) / weights[0] + 2)
