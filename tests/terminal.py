"""`flyweight run` at a pseudo-terminal, as a person sees it."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time

PROMPT = ">>> "
PATIENCE = 60  # seconds; machines that run tests may be busy


class Terminal:
    """A session as a person sees it."""

    def __init__(self, environment: dict[str, str], *words: object, columns: int = 0) -> None:
        self.master, slave = pty.openpty()
        if columns:
            termios.tcsetwinsize(slave, (24, columns))
            environment = {k: v for k, v in environment.items() if k != "COLUMNS"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flyweight.cli.main", "run", *map(str, words)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "NO_COLOR": "1", "INPUTRC": "/dev/null"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, words: str, times: int = 1) -> str:
        """What is shown until `words` have appeared; it is taken from the screen."""
        end = time.monotonic() + PATIENCE
        while self.screen.count(words) < times:
            assert time.monotonic() < end, f"{words!r} did not come; shown: {self.screen!r}"
            if select.select([self.master], [], [], 0.5)[0]:
                try:
                    raw = os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:
                    raise AssertionError(f"it ended; shown: {self.screen!r}") from None
                self.screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", raw).replace("\r", "")
        at = -1
        for _ in range(times):
            at = self.screen.index(words, at + 1)
        shown, self.screen = self.screen[: at + len(words)], self.screen[at + len(words) :]
        return shown

    def say(self, line: str) -> str:
        """Types a line, and returns what is shown up to the next prompt."""
        self.type(line + "\n")
        return self.until(PROMPT)

    def rest(self) -> str:
        """What is still shown after the end."""
        shown = self.screen
        while select.select([self.master], [], [], 0.1)[0]:
            try:
                shown += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                break
        return shown

    def ended(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Ends the session, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
