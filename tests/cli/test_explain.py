"""`flyweight explain`: tables that fit the terminal, and JSON; definitions of metrics."""

import json

import pytest

from flyweight.bench.definitions import BY_COMMAND


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


@pytest.mark.parametrize("name", BY_COMMAND)
def test_figures_of_bench_are_defined(command, monkeypatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    got = command("bench", name, "--explain")
    assert got.code == 0 and got.err == ""
    assert max(map(len, got.out.splitlines())) <= 80
    for one in BY_COMMAND[name]:
        assert one.name in got.out and one.text.split()[0] in got.out


def test_serve_has_the_slides_definitions() -> None:
    """TTFT, E2EL, ITL and throughput; and TPOT and goodput."""
    names = {one.name for one in BY_COMMAND["serve"]}
    assert {"TTFT", "E2EL", "ITL", "TPOT", "Output token throughput", "Request goodput"} <= names


def test_tests_that_are_all_there_are_named(command, tmp_path) -> None:
    words = ("bench", "kernels", "-p", "0", "-n", "2", "-r", "1", "--results", tmp_path / "rows")
    assert "tg2" in command(*words).out
    again = command(*words)
    assert again.code == 0 and again.out == ""
    assert again.err == f"nothing was measured: {tmp_path / 'rows'} has tg2 already\n"
