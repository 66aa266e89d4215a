"""Odd surroundings: streams that are closed, full, pipes or plain ASCII, and nobody's home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GREEDY = ("--temperature", "0", "-n", "3")


@pytest.fixture
def shell(environment):
    """`shell("<&-", "run", ...)`: the command in a process of its own, with a redirection."""

    def call(redirection: str, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "flyweight.cli.main", *map(str, words)]
        return subprocess.run(
            ["sh", "-c", f'"$@" {redirection}', "sh", *start],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environment, **more},
            encoding="utf-8",
            timeout=120,
        )

    return call


def one_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and line.startswith("error: ") and "Traceback" not in done.stderr
    assert all(word in line for word in words), line


# --- streams ---


def test_stdin_is_closed(shell, folder) -> None:
    one_error(shell("<&-", "run", folder), "stdin: it is closed; give a prompt")
    one_error(shell("<&-", "run", folder, "hi", "-f", "-"), "-f -: it is closed")
    assert shell("<&-", "run", folder, "hi", *GREEDY).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_stdout_is_full(shell, folder) -> None:
    for words in (("run", folder, "hi", *GREEDY), ("inspect", folder, "--json"), ("--help",)):
        for unbuffered in ("", "1"):
            done = shell(">/dev/full", *words, PYTHONUNBUFFERED=unbuffered)
            one_error(done, "stdout: No space left on device")
            assert "Exception ignored" not in done.stderr


def test_stdout_is_closed(shell, folder) -> None:
    one_error(shell(">&-", "run", folder, "hi", *GREEDY), "stdout is closed")


def test_stderr_is_closed(shell, folder) -> None:
    done = shell("2>&-", "run", folder, "hi", *GREEDY)
    assert done.returncode == 0 and done.stdout.count("\n") == 1


def test_a_terminal_without_box_characters(shell, folder) -> None:
    done = shell("", "inspect", folder, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "2, 32 wide" in done.stdout and "64?32" in done.stdout


# --- a pipe next to a prompt ---


def test_text_next_to_a_prompt_is_not_lost(shell, folder, tmp_path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The notes end here.\n")
    for words in (("Summarise:",), ("Summarise:", "-f", notes)):
        one_error(shell(f"<{notes}", "run", folder, *words), "-f - puts the text before the prompt")
    done = shell(f"<{notes}", "run", folder, "Summarise:", "-f", "-", *GREEDY, "--json")
    assert done.returncode == 0 and '"The notes end here.\\nSummarise:"' in done.stdout


def test_a_pipe_that_stays_open_is_not_waited_for(folder, environment) -> None:
    """With nothing in it, something in it, and closed."""
    start = [sys.executable, "-m", "flyweight.cli.main", "run", str(folder), "hi", *GREEDY]
    for text, opened, says in ((b"", True, "note: "), (b"x", True, "error: "), (b"", False, "")):
        reader, writer = os.pipe()
        os.write(writer, text)
        if not opened:
            os.close(writer)
        done = subprocess.run(
            start, stdin=reader, capture_output=True, env=environment, text=True, timeout=120
        )
        os.close(reader)
        if opened:
            os.close(writer)
        assert done.returncode == (2 if text else 0)
        assert says in done.stderr if says else "note" not in done.stderr


# --- a home ---


def test_without_a_home_there_is_no_history(monkeypatch) -> None:
    from flyweight.cli.lines import edit_lines

    def unknown(_) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    edit_lines()


def test_json_needs_a_prompt(command) -> None:
    got = command("run", "stories", "--json")
    assert got.code == 2 and got.err.startswith("error: --json prints one answer")
