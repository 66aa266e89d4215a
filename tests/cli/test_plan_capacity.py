"""`flyweight plan capacity`: users within targets, and what is refused."""

import json

import pytest

WORDS = ("plan", "capacity", "--threads", "1", "--prompt-tokens", "16", "--output-tokens", "8")


def test_capacity_of_the_model_inside(command, monkeypatch) -> None:
    monkeypatch.setattr("flyweight.planning.capacity.MOST", 200)
    monkeypatch.setattr("flyweight.planning.capacity.PRECISION", 1.5)
    got = json.loads(command(*WORDS, "--ttft", "5s", "--itl", "1s", "--json").out)
    rows = got["tables"]["capacity"]["rows"]
    served = next(row for row in rows if row["share_of_capacity"] == 1)
    assert served["met"] >= 0.9 and served["requests_per_second"] > 0
    assert "users" in got["tables"]["capacity"]["notes"][0]


@pytest.mark.long
def test_rates_are_measured_too(command, monkeypatch) -> None:
    monkeypatch.setattr("flyweight.planning.capacity.MOST", 200)
    monkeypatch.setattr("flyweight.planning.capacity_check.MOST", 30)
    got = json.loads(command(*WORDS, "--ttft", "5s", "--itl", "1s", "--validate", "--json").out)
    rows = got["tables"]["validation"]["rows"]
    assert 6 <= len(rows) <= 9 and all(row["measured_ttft_p90_seconds"] > 0 for row in rows)
    assert "Knee: predicted" in got["tables"]["validation"]["notes"][0]


@pytest.mark.parametrize(
    "words, said",
    [
        (["--ttft", "soon"], "ttft"),
        (["--itl", "0ms"], "above 0"),
        (["--output-tokens", "1"], "nearest valid: 2"),
        (["--prompt-tokens", "510"], "nearest valid: 504"),
        (["llama-2-7b", "--validate"], "only its published dimensions"),
        (["--itl", "1us"], "itl = '1us' cannot be met: one request alone takes"),
        (["--ttft", "0.001ms"], "ttft = '0.001ms' cannot be met: one request alone takes"),
    ],
)
def test_refusals_are_one_line(command, words, said) -> None:
    got = command(*WORDS, *words)
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1
    assert said in got.err, got.err
