"""`flyweight explain`: tables that fit the terminal, and JSON; definitions of metrics."""

import json


def test_tables_fit_the_terminal(command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    got = command("explain", "stories", "--prompt", "Once upon a time", "--threads", "1")
    assert got.code == 0
    assert max(map(len, got.out.splitlines())) <= 80
    for words in ("Shapes", "Prefill: 5 tokens", "Decode", "gate, up", "micro-benchmark", "share"):
        assert words in got.out


def test_json_has_every_op(command) -> None:
    got = json.loads(command("explain", "--prompt", "Once", "--threads", "1", "--json").out)
    rows = {row["op"]: row for row in got["tables"]["decode"]["rows"]}
    assert rows["down"]["operations"] == 2 * 192 * 512 * 6
    assert rows["down"]["limit"] in ("memory", "compute")
    assert rows["sum"]["seconds"] > 0


def test_a_prompt_of_more_than_a_step_is_refused(command) -> None:
    got = command("explain", "--prompt", "once upon a time " * 110)
    assert got.code == 2 and got.err.count("\n") == 1
    assert "prompt" in got.err and "511" in got.err
