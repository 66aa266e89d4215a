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
