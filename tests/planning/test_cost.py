"""Cost, break-even and GPU or CPU, with the founding documents' figures worked out by hand."""

import pytest

from flyweight.planning.cost import (
    CloudPrice,
    EdgePrice,
    compute_breakeven,
    compute_token_cost,
)
from flyweight.planning.cost_report import report_breakeven, report_cost, write_dollars
from flyweight.planning.workload_cost import (
    Bill,
    PricedDevice,
    compute_month,
    compute_per_token,
)
from flyweight.planning.workload_report import apply_rule, report_devices

GPU = PricedDevice("GPU", 2000, 300, 50, 0.4)
CPU = PricedDevice("CPU", 500, 120, 20, 15)


def test_cost_of_a_token() -> None:
    # $2 an hour, half a second for 100 tokens: 2 / 3600 x 0.5 / 100
    assert compute_token_cost(2.0, 0.5, 100) == pytest.approx(2.7778e-6, rel=1e-4)
    rows = {row["amount"]: row["dollars"] for row in report_cost(2.0, 0.5, 100).tables[0]
            .list_records()}  # fmt: skip
    assert rows["an answer"] == pytest.approx(2 / 3600 * 0.5)


def test_the_seeds_break_even() -> None:
    """2000 / 6 + 100 + 50 = 483.33 dollars; a query costs 0.001.  With $333 it is 483,000."""
    assert compute_breakeven(CloudPrice(), EdgePrice()) == pytest.approx(483_333.33)
    assert compute_breakeven(CloudPrice(), EdgePrice(hardware=1998)) == pytest.approx(483_000)


def test_every_input_of_the_break_even_counts() -> None:
    base = compute_breakeven(CloudPrice(), EdgePrice())
    assert compute_breakeven(CloudPrice(price=0.02), EdgePrice()) == pytest.approx(base / 2)
    assert compute_breakeven(CloudPrice(tokens=200), EdgePrice()) == pytest.approx(base / 2)
    changed = EdgePrice(hardware=3000, months=10, electricity=20, maintenance=30)
    assert compute_breakeven(CloudPrice(), changed) == pytest.approx(350_000)


def test_the_seeds_thresholds_are_checked() -> None:
    report = report_breakeven(CloudPrice(), EdgePrice())
    rows = report.tables[1].list_records()
    # 10,000 a day are $300 a month in the cloud, below $483: the course's rule does not hold there
    assert [row["cheaper"] for row in rows] == ["cloud", "cloud", "edge"]
    assert [row["devices"] for row in rows] == [1, 1, 1]  # 50,000 x 0.4 s are a quarter of a day


def test_devices_are_as_many_as_the_day_needs() -> None:
    assert EdgePrice(latency=0.4).count_devices(216_000) == 1
    assert EdgePrice(latency=0.4).count_devices(216_001) == 2


def test_a_month_of_a_cpu_by_hand() -> None:
    # 1,000 x 15 s = 15,000 s at 120 W and 71,400 s at 20 W: 3.228 MJ a day, 26.9 kWh a month
    cost = compute_month(CPU, Bill(1000, 6, 0.15, 100))
    assert cost.count == 1 and cost.busy == pytest.approx(15_000 / 86_400)
    assert cost.hardware == pytest.approx(500 / 6)
    assert cost.energy == pytest.approx(26.9 * 0.15)
    assert compute_per_token(cost, Bill(1000, 6, 0.15, 100)) == pytest.approx(cost.total / 3e6)


def test_a_cpu_that_is_too_slow_is_bought_more_than_once() -> None:
    assert compute_month(CPU, Bill(5760, 6, 0.15, 100)).count == 1
    assert compute_month(CPU, Bill(5761, 6, 0.15, 100)).count == 2


@pytest.mark.parametrize(("daily", "rule"), [(99, "CPU"), (100, "either"), (1001, "GPU")])
def test_the_seeds_rule_of_gpu_or_cpu(daily: float, rule: str) -> None:
    assert apply_rule(daily) == rule


def test_the_cheaper_device_is_marked() -> None:
    report = report_devices([GPU, CPU], Bill(100_000, 6, 0.15, 100))
    assert report.tables[0].strong == {0}
    assert report_devices([GPU, CPU], Bill(100, 6, 0.15, 100)).tables[0].strong == {1}


@pytest.mark.parametrize(
    ("amount", "text"),
    [(483.333, "$483.33"), (0.001, "$0.001"), (2.7778e-6, "$0.00000278"), (1500, "$1,500.00")],
)
def test_dollars(amount: float, text: str) -> None:
    assert write_dollars(amount) == text
