"""What a person sees while something is measured: a bar on stderr, rows as they come.

Invariant: stdout holds results and nothing else; without a terminal there is no bar.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flyweight.bench.kernels import RunListener
from flyweight.bench.rows import BenchRow
from flyweight.cli.show import LoadingDisplay, make_console
from flyweight.validation.untrusted import printable

Rows = Callable[[Sequence[BenchRow]], None]


class Measuring(RunListener):
    """The bar of loading, then one of the rounds; `shown` is called with rows."""

    def __init__(self, console: Console, shown: Rows | None = None) -> None:
        self.console, self.shown = console, shown
        self.load = LoadingDisplay(console, verbose=False)
        self.bar: Progress | None = None

    def report_progress(self, done: int, total: int) -> None:
        self.load.report_progress(done, total)

    def show_download(self, file: str, done: int, total: int) -> None:
        self.load.show_download(file, done, total)

    def warn(self, message: str) -> None:
        self.load.warn(message)

    def note(self, message: str) -> None:
        self.load.note(message)

    def round(self, test: str, done: int, total: int) -> None:
        """`done` of `total` are over, and `test` begins.  Another total is another stage, whose
        time left is its own.
        """
        self.load.stop()
        if not self.console.is_terminal:
            return
        if self.bar is None:
            name = TextColumn("{task.description}", markup=False)
            columns = name, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
            # drawn between rounds only: a thread that draws would take turns with what is timed
            self.bar = Progress(
                *columns,
                console=self.console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self.bar.start()
            self.bar.add_task(test, total=total)
        (task,) = self.bar.tasks
        if total != task.total or done < task.completed:
            self.bar.reset(task.id, total=total)
        self.bar.update(task.id, completed=done, description=printable(test), refresh=True)

    def rows(self, rows: Sequence[BenchRow]) -> None:
        self.stop()  # rows and the bar may share a terminal
        if self.shown is not None:
            self.shown(rows)

    def stop(self) -> None:
        self.load.stop()
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


@contextmanager
def show_measuring(shown: Rows | None = None) -> Iterator[Measuring]:
    """Bars go when the block ends, however it ends."""
    display = Measuring(make_console(stderr=True), shown)
    try:
        yield display
    finally:
        display.stop()
