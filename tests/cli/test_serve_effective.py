"""The ledger as people see it when a server is ready: rows, shared lines, and how much room it
takes.
"""

import re

import pytest

from flyweight.arguments.draft import DEFAULT
from flyweight.cli.serve.banner import (
    MOST_ROWS,
    WIDEST,
    ConfigRow,
    draw_table,
    sort_features,
    write_table,
)
from flyweight.server.observability.features import FeatureRow

FEATURES = (
    FeatureRow("prefix caching", DEFAULT, "on", "equal beginnings share blocks"),
    FeatureRow("speculation", "--speculative-config {}", "ngram", "up to 4 guesses a step"),
    FeatureRow("LoRA", DEFAULT, "off", "not requested"),
    FeatureRow("tool calls", DEFAULT, "JSON", "as the chat template shows"),
    FeatureRow("K/V cache", DEFAULT, "8 blocks", "as many as fit"),
    FeatureRow("--enforce-eager", "--enforce-eager", "always", "there are no graphs"),
    FeatureRow("--dtype", "--dtype auto", "auto", "as the file has them"),
)
COLOURS = re.compile("\x1b\\[[0-9;]*m")


def test_requested_and_decided_features_have_a_row_others_a_word() -> None:
    rows, lines = sort_features(FEATURES)
    assert rows == [
        ConfigRow("speculation", "--speculative-config {}", "ngram", "up to 4 guesses a step"),
        ConfigRow("K/V cache", "by default", "8 blocks", "as many as fit"),
        ConfigRow("--enforce-eager", "yes", "always", "there are no graphs"),
        ConfigRow("--dtype", "auto", "auto", "as the file has them"),
    ]
    assert lines == {"on by default": "prefix caching, tool calls (JSON)", "off by default": "LoRA"}


def test_columns_of_a_log_are_aligned() -> None:
    head, *reported = write_table(*sort_features(FEATURES))
    places = [head.index(name) for name in ("requested", "effective", "reason")]
    assert reported[0][places[0] :].startswith("--speculative-config {}")
    assert reported[0][places[1] :].startswith("ngram")
    assert reported[0][places[2] :] == "up to 4 guesses a step"
    assert reported[-2:] == [
        "on by default: prefix caching, tool calls (JSON)", "off by default: LoRA"
    ]  # fmt: skip


def test_many_options_share_a_line() -> None:
    many = [FeatureRow(f"--x{i}", f"--x{i}", "always", "so it is") for i in range(50)]
    said = write_table(*sort_features([*FEATURES, *many]))
    assert len(said) <= 1 + MOST_ROWS + 3
    joint = "\n".join(said)
    assert all(f"{f.name}" in joint for f in (*FEATURES, *many))


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_a_terminal_has_a_row_a_line(width: int) -> None:
    long = FeatureRow("memory", "--memory-limit " + "9" * 100, "1 of 2", "because " * 40)
    rows, lines = sort_features([*FEATURES, long])
    said = [COLOURS.sub("", line) for line in draw_table(rows, lines, width)]
    assert len(said) == 2 + len(rows) + len(lines)
    for row, line in zip(rows, said[2:], strict=False):
        assert line.startswith(row.feature) and f" {row.effective} " in line
    cells = [len(line.rstrip()) for line in said[: 2 + len(rows)]]
    assert max(cells) <= max(width, 20 + 20 + len("--enforce-eager") + len("effective") + 6)
    assert len(rows[-1].requested) <= WIDEST and rows[-1].requested.endswith("…")


def test_words_of_others_move_no_terminal() -> None:
    (row,), _ = sort_features([FeatureRow("memory", "--memory-limit \x1b[2J", "1", "x")])
    assert "\x1b" not in row.requested
