"""`flyweight bench batch-sweep` and `sampling`: tables, JSON and refusals."""

import json

import pytest


def test_a_sweep_fits_a_terminal(command) -> None:
    done = command("bench", "batch-sweep", "-b", "1,2", "--output-len", 4, "-r", 1)
    assert done.code == 0 and "Best within a memory limit of 80%" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_sampling_as_json(command) -> None:
    words = ("bench", "sampling", "--output-len", 8, "-r", 1, "--json")
    rows = json.loads(command(*words).out)["tables"]["decoding"]["rows"]
    assert [row["way"] for row in rows] == ["greedy", "top-k", "beam"]
    assert rows[2]["seed_ms"] == 600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("batch-sweep", "-b", "0"), "batch = 0 is out of range"),
        (("batch-sweep", "-b", "x"), "batch = 'x'"),
        (("sampling", "--beam-width", "0"), "beam_width = 0 is out of range"),
        (("sampling", "--beam-width", "99"), "nearest valid: 32"),
    ],
)
def test_refusals_of_tables(command, words: tuple[str, ...], said: str) -> None:
    done = command("bench", *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1


def test_stages_add_up(command) -> None:
    words = ("bench", "stages", "--output-len", 4, "-r", 1)
    assert max(map(len, command(*words).out.splitlines())) <= 80
    rows = json.loads(command(*words, "--json").out)["tables"]["stages"]["rows"]
    assert sum(row["share"] for row in rows[:-1]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--prompt", ""), "prompt has 0 tokens"), (("--output-len", "0"), "output_len = 0")],
)
def test_refusals_of_stages(command, words: tuple[str, ...], said: str) -> None:
    done = command("bench", "stages", *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1
