"""`flyweight prompt`: its forms of output, exit codes, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

Command = Callable[..., SimpleNamespace]
RULES = "The owl is kind. The fox is quick. They went to the lake to find a red boat.\n" * 4


@pytest.fixture
def early(tmp_path: Path) -> Path:
    path = tmp_path / "early.txt"
    path.write_text(f"It is 12:30.\n[RULES]\n{RULES}[ANSWER]\n")
    return path


def test_a_finding_in_words(command: Command, early: Path) -> None:
    done = command("prompt", "lint", early)
    assert done.code == 0 and done.err == ""
    assert "time '12:30' comes before text that stays the same" in " ".join(done.out.split())
    assert "[RULES]" in done.out and "volatile text last" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_same_as_json(command: Command, early: Path) -> None:
    tables = json.loads(command("prompt", "lint", early, "--json").out)["tables"]
    sections = {row["section"]: row["tokens"] for row in tables["sections"]["rows"]}
    assert list(sections) == ["(beginning)", "[RULES]", "[ANSWER]", "all"]
    assert sections.pop("all") == sum(sections.values())
    (finding,) = tables["findings"]["rows"]
    assert finding["rule"] == "volatile" and finding["where"] == str(early)
    now, moved = tables["reuse"]["rows"]
    assert now["cached_tokens"] == 0 and finding["lost"] == moved["cached_tokens"] > 0
    assert moved["hit_rate"] == moved["cached_tokens"] / moved["tokens"]


def test_strict_fails_where_there_is_a_finding(
    command: Command, early: Path, tmp_path: Path
) -> None:
    assert command("prompt", "lint", early, "--strict").code == 1
    clean = tmp_path / "clean.txt"
    clean.write_text(RULES)
    done = command("prompt", "lint", clean, "--strict")
    assert done.code == 0 and "No findings." in done.out


def test_larger_blocks_find_less(command: Command, early: Path) -> None:
    done = command("prompt", "lint", early, "--block-size", "1024", "--json")
    tables = json.loads(done.out)["tables"]
    assert tables["findings"]["rows"] == [] and tables["reuse"]["rows"][1]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lint", "no.txt"), "no.txt"),
        (("lint",), "FILE"),
        (("lint", "README.md", "--block-size", "0"), "block_size = 0"),
        (("lint", "README.md", "--model", "no-model"), "no-model"),
        (("lynt",), "unknown command 'lynt' (did you mean 'lint'?)"),
    ],
)
def test_refusals_are_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    done = command("prompt", *words)
    assert done.code == 2 and done.out == ""
    assert said in done.err and done.err.count("\n") == 1


@pytest.fixture
def context(tmp_path: Path) -> Path:
    path = tmp_path / "context.txt"
    path.write_text("The owl lives at the lake.\n\n" + RULES)
    return path


def test_a_rag_prompt_and_how_much_was_left_out(command: Command, context: Path) -> None:
    words = ("prompt", "rag", "--question", "Where?", "--context", context, "--budget", "30")
    done = command(*words)
    begin = "[CONTEXT]\nThe owl lives at the lake.\n\n(1 of 2 passages left out)\n\n[QUESTION]"
    assert done.code == 0 and done.out.startswith(begin)
    assert done.out.endswith("[ANSWER]\n")
    assert done.err.startswith("context: 1 of 2 passages, 1 left out, ")
    found = json.loads(command(*words, "--constrain", "choice", "--json").out)
    assert found["prompt"] == done.out and found["used"] == [0] and found["left_out"] == [1]
    choice = ["The owl lives at the lake.", "not found"]
    assert found["structured_outputs"] == {"choice": choice}
    assert found["context_tokens"] <= found["budget"] == 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "1"), "budget = 1 holds none of the passages; allowed: "),
        (("--budget", "-5"), "budget = -5 is not valid; allowed: 1 or more"),
        (("--question", ""), "question is empty; allowed: text"),
        (("--constrain", "choise", "--json"), "choice, grammar (did you mean 'choice'?)"),
        (("--constrain", "choice"), "needs --json"),
        (("--context", "no.txt"), "no.txt"),
        (("--not-found", ""), "not_found is empty"),
    ],
)
def test_refusals_of_rag_are_one_line(
    command: Command, context: Path, words: tuple[str, ...], said: str
) -> None:
    done = command("prompt", "rag", "--question", "Where?", "--context", context, *words)
    assert done.code == 2 and done.out == ""
    assert said in done.err and done.err.count("\n") == 1
