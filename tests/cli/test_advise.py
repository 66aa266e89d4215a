"""`flyweight advise`: rules that fit the terminal, and unknown use cases."""

import json

import pytest


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is compared: each measurement is three passes."""
    monkeypatch.setattr("flyweight.planning.partial.RUN", 0.0)
    monkeypatch.setattr("flyweight.planning.partial.SECONDS", 0.0)


def test_advice_fits_the_terminal(command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    got = command("advise", "stories", "--use-case", "chat", "--threads", "1")
    assert got.code == 0 and max(map(len, got.out.splitlines())) <= 80
    for words in ("Selection matrix", "7B INT4", "INT4 first", "agrees"):
        assert words in got.out


def test_advice_as_json(command) -> None:
    got = json.loads(command("advise", "stories", "--threads", "1", "--json").out)
    rules = {row["rule"]: row for row in got["tables"]["rules"]["rows"]}
    assert rules["edge"]["agrees"] == "cannot tell" and rules["headroom"]["agrees"] is True
    assert len(got["tables"]["selection"]["rows"]) == 5


def test_unknown_use_cases_are_listed(command) -> None:
    got = command("advise", "--use-case", "chatting")
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1
    assert "chat, bulk, cheap, quality, rag" in got.err and "did you mean 'chat'" in got.err
