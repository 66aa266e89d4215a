"""`flyweight bench fragmentation` and `window`: their forms of output, and what they refuse."""

import json

import pytest


def test_fragmentation_fits_a_terminal_and_is_json(command) -> None:
    words = ("bench", "fragmentation", "--num-prompts", 60, "--kv-tokens", 16384)
    done = command(*words)
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    rows = json.loads(command(*words, "--json").out)["tables"]["fragmentation"]["rows"]
    assert [(row["memory"], row["slots"]) for row in rows] == [
        ("contiguous", 8192), ("paged", 16), ("paged", 32),
    ]  # fmt: skip
    assert rows[0]["waste"] > 0.5 and rows[1]["waste"] < 0.04


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--num-prompts", "0"), "num_prompts = 0"),
        (("--max-model-len", "70000"), "nearest valid: 65536"),
        (("--block-size", "x"), "block_size = 'x'"),
        (("--dataset-path", "none.csv"), "dataset_path = 'none.csv' is not a file"),
    ],
)
def test_refusals_of_fragmentation(command, words: tuple[str, ...], said: str) -> None:
    done = command("bench", "fragmentation", *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1


def test_the_window_of_the_founding_document(command) -> None:
    done = command("bench", "window")
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80
    assert "1,002.5" in done.out and "1,001" in done.out
    tables = json.loads(command("bench", "window", "--json").out)["tables"]
    assert [row["at"] for row in tables["timeline"]["rows"]] == [
        0, 2, 3, 4, 5,
    ]  # fmt: skip
    other = command("bench", "window", "--arrivals", "0,1", "--preferred-batch", "2")
    assert "the course" not in other.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch-wait-ms=-1",), "batch_wait_ms = -1.0 is out of range"),
        (("--preferred-batch", "0"), "preferred_batch = 0"),
        (("--arrivals", "5,x"), "arrivals = 'x' is not a number"),
        (("--arrivals", "5,4"), "sort the times"),
    ],
)
def test_refusals_of_the_window(command, words: tuple[str, ...], said: str) -> None:
    done = command("bench", "window", *words)
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1
