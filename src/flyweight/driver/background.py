"""What is done for an engine when there is time: weights move, K/V blocks are saved.

Invariant: the first answer does not wait for it; a task says itself how much of the time between
two steps it takes.
"""

from collections.abc import Sequence
from typing import Protocol

from flyweight.build import LoadedModel


class BackgroundTask(Protocol):
    """Something that is done a little at a time."""

    @property
    def wanted(self) -> bool:
        """Whether there is more to do."""
        ...

    def run_idle(self) -> None:
        """A part of it, while the engine is idle."""
        ...

    def step(self) -> None:
        """Between two steps: as much as a step may be delayed by."""
        ...


class Background:
    """Several tasks as one."""

    def __init__(self, tasks: Sequence[BackgroundTask]) -> None:
        self.tasks = tasks

    @property
    def wanted(self) -> bool:
        return any(task.wanted for task in self.tasks)

    def run_idle(self) -> None:
        """A part of the first task that has more to do."""
        task = next((task for task in self.tasks if task.wanted), None)
        if task is not None:
            task.run_idle()

    def step(self) -> None:
        for task in self.tasks:
            task.step()


def list_tasks(loaded: LoadedModel) -> list[BackgroundTask]:
    """The tasks of a model that an engine runs; not the touching of memory, which only a server
    has the time for.
    """
    external = loaded.engine.external
    return [loaded.moving] if external is None else [loaded.moving, external]
