"""`flyweight bench fragmentation`: its forms of output, and what it refuses."""

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
