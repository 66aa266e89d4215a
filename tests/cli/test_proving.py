"""What is shown while techniques are proved, at a terminal and without one."""

import io

from rich.console import Console

from flyweight.cli.proving import ProvingDisplay, describe_time
from flyweight.prove.figures import SpeedInterval
from flyweight.prove.registry import find_technique

APC = find_technique("apc")


def show(*, terminal: bool) -> str:
    out = io.StringIO()
    display = ProvingDisplay(Console(file=out, force_terminal=terminal, width=120), total=3)
    display.begin(APC, 20.0)
    display.show_run(APC, "pair 3, off", 4.0)
    display.show_speed(APC, SpeedInterval(2.0, 1.9, 2.2))
    display.show_run(APC, "pair 3, on", 5.0)
    display.end(APC)
    display.stop()
    return out.getvalue()


def test_a_terminal_shows_what_runs_and_the_speed_up_so_far() -> None:
    shown = show(terminal=True)
    assert "1 of 3: apc: pair 3, off, up to 20 s" in shown
    assert "pair 3, on, up to 20 s; speed-up 2.00x [1.90, 2.20]" in shown


def test_a_short_time_says_what_takes_longer() -> None:
    assert describe_time(0.34) == "up to 0.3 s, or 2 pairs where they take longer"
    assert describe_time(10) == "up to 10 s"


def test_without_a_terminal_there_is_a_line_a_technique() -> None:
    assert show(terminal=False) == "1 of 3: apc: up to 20 s\n"
