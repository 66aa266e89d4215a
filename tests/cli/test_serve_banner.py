"""What is shown while a server starts: progress of what takes long, and nobody who reads it."""

import io
from pathlib import Path

import pytest

from flyweight.cli.serve import banner
from flyweight.cli.serve.banner import Banner
from flyweight.cli.serve.choices import choose
from flyweight.cli.serve.words import read
from flyweight.server.pipe import LoadingProgress

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(banner.time, "monotonic", lambda: now[0])
    return now


def shown(out: io.StringIO) -> Banner:
    made = Banner(choose(read([])), out)
    made.found(Path("some/model.gguf"))
    return made


def test_short_loads_say_only_the_plan(clock: list[float]) -> None:
    out = io.StringIO()
    made = shown(out)
    made.show_progress(LoadingProgress("plan", "1.0 MiB of 2.0 MiB allowed"))
    for done in range(10):
        clock[0] += 0.1
        made.show_progress(LoadingProgress("progress", "loading", done * MIB, 10 * MIB))
    assert out.getvalue() == "model.gguf: 1.0 MiB of 2.0 MiB allowed\n"


def test_long_loads_report_their_progress(clock: list[float]) -> None:
    out = io.StringIO()
    made = shown(out)
    for done in range(100):
        clock[0] += 0.25
        made.report_progress(done * MIB, 100 * MIB)
    lines = out.getvalue().splitlines()
    assert 3 <= len(lines) <= 6
    assert lines[0] == "loading: 7.0 MiB of 100.0 MiB"


def test_a_terminal_has_one_line_that_moves(clock: list[float]) -> None:
    out = Terminal()
    made = shown(out)
    for done in range(20):
        clock[0] += 0.25
        made.show_download("model.gguf", done * MIB, 100 * MIB)
    made.note("done")
    text = out.getvalue()
    assert text.count("\n") == 1 and text.endswith("\r\x1b[Kdone\n")
    assert "fetching model.gguf: 19.0 MiB of 100.0 MiB" in text


def test_a_client_that_reads_nothing(clock: list[float]) -> None:
    made = shown(Closed())
    made.warn("first")
    made.warn("second")


def test_words_of_others_move_no_terminal(clock: list[float]) -> None:
    out = io.StringIO()
    made = shown(out)
    made.show_progress(LoadingProgress("warning", "odd \x1b[2J name"))
    assert "\x1b" not in out.getvalue() and out.getvalue().startswith("warning: odd ")
