"""One style in every help: a summary in the imperative, a sentence for each option, its default."""

import re

import pytest

from flyweight.cli.serve.options import GROUPS
from flyweight.config import Settings
from flyweight.server.settings import ServerSettings

COMMANDS = (
    "", "run", "inspect", "tokenize", "check", "compile", "pull", "models", "rm", "serve", "stop",
    "ps", "version", "bench", "bench kernels", "bench throughput", "bench latency", "bench startup",
    "bench serve", "bench quant", "quantize", "eval", "eval ppl", "eval kld", "eval stamp",
    "eval compare", "eval classify", "prompt lint", "prompt rag", "explain", "plan roofline",
    "plan capacity", "advise",
)  # fmt: skip
ARGUMENTS = r"( [A-Z]+(\.\.\.)?| \[[A-Z|-]+\](\.\.\.)?)*"
USAGE = rf"Usage: flyweight( \w+)* \[OPTIONS\]( COMMAND \[ARGS\]\.\.\.|{ARGUMENTS})"


def options(text: str) -> dict[str, str]:
    """The help of every option by its name, as one line."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        row = re.match(r"  (-.+?)(?:  +(\S.*))?$", line)
        if row:
            name = row[1]
            found[name] = row[2] or ""
        elif name and re.match(r" {10,}\S", line):
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return found


@pytest.fixture
def helped(command, monkeypatch):
    """`helped("bench serve")` -> what `--help` prints."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(name: str) -> str:
        got = command(*name.split(), "--help")
        assert got.code == 0 and got.err == ""
        return got.out

    return call


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_one_style(helped, name: str) -> None:
    text = helped(name)
    usage, blank, summary = text.splitlines()[:3]
    assert usage.startswith(f"Usage: flyweight {name}".rstrip()) and blank == ""
    verb = re.match(r"  ([A-Z][a-z]+),? .*\.$", summary)
    assert verb and not verb[1].endswith("s"), "a sentence in the imperative"
    rows = options(text)
    assert rows["-h, --help"] == "Show this message and exit."
    for option, reported in rows.items():
        sentence, *values = re.split(r" +\[(?:default: |required)", reported)
        assert sentence.endswith(".") and re.match(r"[A-Z/a-z]", sentence), option
        assert len(values) <= 1 and reported.count("[") == len(values), f"{option}: {reported}"
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_usage_lines_are_plain_and_names_are_not_broken(helped, monkeypatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = helped(name).splitlines()
    assert re.fullmatch(USAGE, lines[0]), lines[0]
    assert [line for line in lines if re.search(r"\w-$", line)] == []
    assert "\u2011" not in "".join(lines)


def test_summaries_of_commands_are_whole(helped, monkeypatch) -> None:
    """In a window of 80 columns, which is usual, too."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("", "bench", "eval", "plan", "prompt"):
        assert "..." not in helped(name).split("Commands:")[1]


def test_serve_shows_the_default_of_every_setting(helped) -> None:
    rows = options(helped("serve"))
    for flag in [flag for group in GROUPS.values() for flag in group]:
        reported = next(
            t for spelt, t in rows.items() if re.match(rf"(-\w+, )?--{flag.name}\b(?!-)", spelt)
        )
        room, _, field = flag.sets.partition(".")
        value = getattr(ServerSettings() if room == "server" else Settings(), field, None)
        if value not in (None, False, (), "", {}):
            assert f"[default: {flag.default}]" in reported, flag.name
    assert (
        "[default: 8000]" in rows["--port PORT"] and "[default: 80%]" in rows["--memory-limit SIZE"]
    )
    assert "[default: on]" in rows["--enable-prefix-caching"]
    assert "[default: auto]" in rows["--dtype TYPE"]
