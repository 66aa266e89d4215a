"""The interval of a speed-up, and the verdict."""

import pytest

from flyweight.errors import ConfigError
from flyweight.prove.figures import (
    ENOUGH_PAIRS,
    SpeedInterval,
    bootstrap,
    bootstrap_unpaired,
    compute_ratios,
    find_most_confidence,
    judge,
)


def test_a_speed_up_is_offs_time_over_ons_of_the_same_round() -> None:
    assert compute_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


def test_the_interval_of_equal_ratios_is_a_point() -> None:
    assert bootstrap([2.0] * 5) == SpeedInterval(2.0, 2.0, 2.0)


def test_of_two_pairs_the_interval_is_both() -> None:
    """A median of two drawn again is one of them, or their mean: each end has a quarter."""
    assert bootstrap([1.0, 3.0]) == SpeedInterval(2.0, 1.0, 3.0)


def test_of_many_pairs_the_interval_is_that_of_order_statistics() -> None:
    """For n = 99 the exact 95 % interval of a median is from the 40th to the 60th in order."""
    found = bootstrap([float(i) for i in range(1, 100)])
    assert found.median == 50.0
    assert 38 <= found.low <= 42 and 58 <= found.high <= 62


def test_the_same_pairs_give_the_same_interval() -> None:
    ratios = [1.0, 1.3, 0.9, 1.2, 1.1, 1.4]
    assert bootstrap(ratios) == bootstrap(ratios)


def test_one_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"measurements = 1 are too few.*allowed: 2 or more"):
        bootstrap([2.0])


def test_few_pairs_enclose_a_median_with_less_than_95_percent() -> None:
    """Each of two is as likely above the median as below: both are on one side in half of all."""
    assert find_most_confidence(2) == 0.5
    assert find_most_confidence(ENOUGH_PAIRS - 1) < 0.95 < find_most_confidence(ENOUGH_PAIRS)


def test_runs_of_different_days_are_not_paired() -> None:
    found = bootstrap_unpaired([1.0, 1.0, 1.0], [1.5, 1.5, 1.5, 1.5])
    assert found == SpeedInterval(1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.02, 1.5, "keep"),
        (1.005, 1.5, "no effect"),  # within a percent of no change
        (0.5, 0.98, "harmful"),
        (0.5, 0.995, "no effect"),
        (0.5, 1.5, "no effect"),
    ],
)
def test_the_verdict_is_that_of_the_whole_interval(low: float, high: float, verdict: str) -> None:
    assert judge(SpeedInterval(1.0, low, high)) == verdict


def test_other_answers_than_promised_are_harmful_at_any_speed() -> None:
    assert judge(SpeedInterval(9.0, 8.0, 10.0), broken=True) == "harmful"
