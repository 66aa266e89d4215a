"""`flyweight prove` on the command line: a technique in two processes, lists and refusals."""

import json
from pathlib import Path

import pytest

from flyweight.cli.main import main
from flyweight.prove import registry
from flyweight.prove.registry import find_technique

Captured = pytest.CaptureFixture[str]


def test_a_technique_is_measured_in_a_process_for_each_side(capsys: Captured) -> None:
    assert main(["prove", "apc", "stories", "--minutes", "0.001", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    (row,) = tables["verdicts"]["rows"]
    assert (row["technique"], row["metric"], row["equal_tokens"]) == ("apc", "throughput", 1.0)
    sides = tables["sides"]["rows"]
    assert [one["side"] for one in sides] == ["off", "on"]
    assert all(one["peak_bytes"] > 30 << 20 for one in sides)
    (work,) = tables["work"]["rows"]
    assert (work["requests"], work["share"], work["pairs"]) == (10, 1 / 8, 2)


def test_heads_of_another_model_do_not_fail_all(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One technique stands for all.  By itself it is refused."""
    monkeypatch.setattr(registry, "list_techniques", lambda: [find_technique("medusa")])
    assert main(["prove", "all", str(folder), "--minutes", "0.001"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "medusa: skipped: stories-medusa is for another model" in words
    assert main(["prove", "medusa", str(folder), "--minutes", "0.001"]) == 2
    assert "error: stories-medusa is for another model" in capsys.readouterr().err


def test_the_list_names_every_technique(capsys: Captured) -> None:
    assert main(["prove", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["techniques"]["rows"]
    assert "apc" in [row["technique"] for row in rows]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["acp"], "NAME = 'acp' is not a technique (did you mean 'apc'?); allowed: window, "),
        (["apc", "--metric", "tft"], "metric = 'tft' is not a metric (did you mean 'ttft'?)"),
        (["apc", "--minutes", "0"], "minutes = 0.0 is out of range; allowed: above 0 to 1440"),
        (["apc", "--minutes", "nan"], "minutes = nan is out of range"),
        (["all", "tests/data/models/qwen3"], "tests/data/models/qwen3: no tokenizer here"),
        (["list", "stories", "--minutes", "3"], "MODEL, --minutes cannot be given with list"),
        (["apc", "nothing.gguf"], "model 'nothing.gguf' is not a file or directory"),
    ],
)
def test_bad_input_is_refused(words: list[str], problem: str, capsys: Captured) -> None:
    assert main(["prove", *words]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and problem in said
