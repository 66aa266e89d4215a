"""The bar of long commands: each stage has its own total, and so its own time left."""

import io

from rich.console import Console

from flyweight.cli.bench.progress import Measuring


def test_stages_have_their_own_total() -> None:
    shown = Measuring(Console(file=io.StringIO(), force_terminal=True, width=80))
    for done in range(3):
        shown.round("choosing", done, 300)
    assert shown.bar is not None
    (task,) = shown.bar.tasks
    assert (task.total, task.completed) == (300, 2)
    shown.round("layer 1 of 28", 1, 29)
    assert (task.total, task.completed, task.description) == (29, 1, "layer 1 of 28")
    shown.round("layer 2 of 28", 2, 29)
    assert task.completed == 2
    shown.round("again from the beginning", 0, 29)
    assert task.completed == 0
    shown.stop()
