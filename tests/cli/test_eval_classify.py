"""`flyweight eval classify`: its forms of output, the warning, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

Command = Callable[..., SimpleNamespace]
ROWS = [("the cat", "on"), ("a bird", "off"), ("rain", "on"), ("a mat", "off"), ("the cat", "on")]


def test_the_command(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"text": text, "label": label, "id": 5} for text, label in ROWS]
    file.write_text("\n".join(map(json.dumps, rows)))
    done = command("eval", "classify", "stories", file, "--shots", "1", "--json")
    assert done.code == 0 and done.err.startswith("warning: 5 texts are few")
    tables = json.loads(done.out)["tables"]
    zero, few = tables["accuracy"]["rows"]
    assert (zero["shots"], few["shots"]) == (0, 1) and 0 <= zero["low"] <= zero["high"] <= 1
    assert [row["texts"] for row in tables["labels"]["rows"]] == [3, 2]
    (difference,) = tables["difference"]["rows"]
    assert difference["difference"] == pytest.approx(few["accuracy"] - zero["accuracy"])
    enough = tmp_path / "enough.jsonl"
    enough.write_text("\n".join(map(json.dumps, rows + rows)))
    words = ("eval", "classify", "stories", enough, "--shots", "0", "--limit", "10")
    shown = command(*words)
    assert shown.code == 0 and "warning" not in shown.err and "10 texts, 2 labels" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--by", "choise"),
            "by = 'choise' is not valid; allowed: likelihood, choice (did",
        ),
        (("--labels", "on,of"), "label = 'off' is unknown; allowed: on, of (did you mean 'of'?)"),
        (("--limit", "0"), "limit = 0 is not valid; allowed: 1 or more"),
        (("--shots", "9"), "shots = 9 is more than there are other texts"),
        (("--labels", "on"), "allowed: on"),
    ],
)
def test_refusals_of_the_command(
    command: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"text": text, "label": label} for text, label in ROWS]
    file.write_text("\n".join(map(json.dumps, rows)))
    done = command("eval", "classify", "stories", file, *words)
    assert done.code == 2 and done.out == ""
    assert said in done.err and done.err.count("\n") == 1
