"""What a person sees while techniques are proved: which one, off or on, the time left, and the
speed-up so far.

Invariant: everything goes to stderr; without a terminal there is one line a technique.  Drawn
between runs only: a thread that draws would take turns with what is timed.
"""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flyweight.prove.figures import LEAST_PAIRS, SpeedInterval
from flyweight.prove.runner import ProveListener
from flyweight.prove.technique import Technique

SHORT = 10  # seconds, which a warm-up and the least pairs may exceed


def describe_time(seconds: float) -> str:
    """How long a technique may take: the least pairs are measured even if the time is up."""
    if seconds >= SHORT:
        return f"up to {seconds:.0f} s"
    return f"up to {seconds:.1f} s, or {LEAST_PAIRS} pairs where they take longer"


class ProvingDisplay(ProveListener):
    """A bar of the time of the technique under way, one of `total`."""

    def __init__(self, console: Console, total: int = 1) -> None:
        self.console, self.total = console, total
        self._count = 0
        self.bar: Progress | None = None
        self._speed = ""
        self._seconds = 1.0

    def begin(self, technique: Technique, seconds: float) -> None:
        self._count += 1
        self._speed, self._seconds = "", max(seconds, 1e-3)
        if not self.console.is_terminal:
            line = f"{self._name(technique)}: {describe_time(seconds)}"
            self.console.print(line, highlight=False)
            return
        words = TextColumn("{task.description}", markup=False)
        self.bar = Progress(
            words,
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.bar.start()
        self.bar.add_task(self._name(technique), total=seconds)

    def show_run(self, technique: Technique, what: str, spent: float) -> None:
        if self.bar is not None:
            (task,) = self.bar.tasks
            words = f"{self._name(technique)}: {what}, {describe_time(self._seconds)}{self._speed}"
            done = min(spent, self._seconds)
            self.bar.update(task.id, completed=done, description=words, refresh=True)

    def show_speed(self, technique: Technique, speed: SpeedInterval) -> None:
        self._speed = f"; speed-up {speed}"

    def end(self, technique: Technique) -> None:
        self.stop()

    def _name(self, technique: Technique) -> str:
        """With its place where there are several."""
        place = f"{self._count} of {self.total}: " if self.total > 1 else ""
        return place + technique.name

    def stop(self) -> None:
        """Removes the bar, at any point of a run."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
