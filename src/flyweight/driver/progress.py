"""A progress bar for long calls, and Ctrl-C between steps.

Invariant: neither changes what is computed.  No thread, and no handler left behind.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

from tqdm import tqdm

from flyweight.engine.engine import Engine
from flyweight.validation.untrusted import printable

BAR_AFTER = 1.0  # seconds; shorter work shows no progress bar
BAR_EVERY = 0.2


class Progress(tqdm):  # type: ignore[misc]
    """Prompts done and tokens a second, where there is a terminal and the work takes long."""

    monitor_interval = 0  # no thread of its own

    def __init__(self, prompts: int, wanted: bool, produced: int) -> None:
        hidden = None if wanted else True  # None: where there is no terminal
        super().__init__(
            total=prompts, unit="prompt", disable=hidden, delay=BAR_AFTER, dynamic_ncols=True
        )
        self._began = self._shown = time.monotonic()
        self._before = produced

    def show(self, produced: int) -> None:
        """`produced` tokens by the engine so far; draws at most a few times a second."""
        now = time.monotonic()
        if self.disable or now == self._began:
            return
        rate = (produced - self._before) / (now - self._began)
        self.set_postfix_str(f"{rate:.0f} tokens/s", refresh=False)
        if now - self._began >= BAR_AFTER and now - self._shown >= BAR_EVERY:
            self._shown = now
            self.refresh()


class CallProgress:
    """What an `LLM` made without `notify` shows: a bar for downloads, where there is a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    def show_plan(self, plan: object, found: object) -> None: ...
    def report_progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...

    def show_download(self, file: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=total, unit="B", unit_scale=True, disable=None, delay=BAR_AFTER,
                dynamic_ncols=True,
            )  # fmt: skip
        self._bar.total = total
        self._bar.set_description_str(printable(file)[-40:], refresh=False)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextmanager
def hold_interrupts(engine: Engine) -> Iterator[Callable[[], None]]:
    """Holds Ctrl-C back until the block is done, or calls what it is given between two steps, so
    that it never falls inside one; pressed twice, it falls as soon as the model computes.  Leaves a
    program's own way with signals alone.
    """
    mine = signal.default_int_handler
    pressed: list[int] = []

    def between() -> None:
        if pressed:
            raise KeyboardInterrupt

    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not mine:
        yield between
        return

    def note(number: int, frame: object) -> None:
        pressed.append(number)
        if len(pressed) > 1 and engine.computing:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield between
    finally:
        signal.signal(signal.SIGINT, mine)
    between()
