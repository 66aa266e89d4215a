"""An event loop's clock that stands still until it is set: timers are called in the order in which
they are due.
"""

from collections.abc import Callable

ROUNDING = 1e-9  # seconds


class Timer:
    """A callback of a `Clock`."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when, self.callback, self.over = when, callback, False

    def cancel(self) -> None:
        self.over = True


class Clock:
    """In the place of an event loop: its time, in seconds, is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def run_before(self, when: float) -> None:
        """Calls what is due before `when`, and is then at that time."""
        while due := [one for one in self.timers if not one.over and one.when < when - ROUNDING]:
            timer = min(due, key=lambda one: one.when)
            timer.over, self.now = True, timer.when
            timer.callback()
        self.now = when
