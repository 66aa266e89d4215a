"""The interactive session, typed at a pseudo-terminal: streaming, commands, history, Ctrl-C and
Ctrl-D, and the second turn's prefix hit.
"""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

PROMPT = ">>> "
PATIENCE = 60  # seconds; machines that run tests may be busy


class Terminal:
    """A session as a person sees it."""

    def __init__(self, environment: dict[str, str], *words: object) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flyweight.cli.main", "run", *map(str, words)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "NO_COLOR": "1", "INPUTRC": "/dev/null"},
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
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


@pytest.fixture
def terminal(environment) -> Iterator:
    opened = []

    def start(*words: object) -> Terminal:
        opened.append(Terminal(environment, *words))
        opened[-1].until(PROMPT)
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
        os.close(one.master)


def test_a_conversation(terminal, speaking) -> None:
    session = terminal(speaking, "--temperature", "0", "-n", "16", "--block-size", "8")
    assert "/reset" in session.say("/help")
    first = session.say("tell me something about it")
    assert " tokens/s · first token after " in first and "from cache" not in first
    second = session.say("and more")
    cached, of = map(int, re.search(r"(\d+) of (\d+) prompt tokens from cache", second).groups())
    assert cached >= 16 and of > cached, "the first turn is found again"
    stats = session.say("/stats")
    assert "last answer: " in stats and re.search(r"cached +\d+", stats)
    session.say("/reset")
    again = session.say("tell me something about it")
    assert first.split("\n")[1] == again.split("\n")[1], "the same question to a fresh conversation"
    session.type("/bye\n")
    assert session.ended() == 0


def test_ctrl_c_stops_an_answer_and_ctrl_d_the_session(terminal, folder) -> None:
    session = terminal(folder, "--ignore-eos", "--max-model-len", "200000", "--block-size", "32")
    session.type("hello\n")
    session.until("hello")
    time.sleep(0.5)
    session.type("\x03")
    shown = session.until(PROMPT)
    assert "stopped · " in shown and "tokens" in shown and "Traceback" not in shown
    session.type("half a line")
    session.until("half a line")
    time.sleep(0.3)  # a key pressed just before readline listens waits for the next key
    session.type("\x03")
    session.until(PROMPT)
    assert "unknown command /bey (did you mean '/bye'?)" in session.say("/bey")
    session.type("\x04")
    assert session.ended() == 0 and "leaked" not in session.rest()


def test_ctrl_c_pressed_impatiently_ends_answers_only(terminal, folder) -> None:
    """It falls on the request being given up, on the figures and on the next prompt."""
    session = terminal(folder, "--ignore-eos", "--max-model-len", "200000", "--block-size", "32")
    for _ in range(5):
        session.type("hello\n")
        session.until("hello")
        time.sleep(0.2)
        for pause in (0.0, 0.002, 0.01):
            session.type("\x03")
            time.sleep(pause)
        session.until(PROMPT)
        time.sleep(0.5)
        session.screen = ""
        # A signal may still be on its way on a busy machine and take the first line with it.
        session.type("\x15/nothing\n\x15/nothing\n\x15/nothing\n")
        assert "Traceback" not in session.until("/help lists them")
        session.until(PROMPT)


def test_lines_are_edited_and_remembered(terminal, folder) -> None:
    first = terminal(folder, "-n", "2")
    first.say("/hexp\x1b[D\x7fl\x1b[C")  # left, rubout, l, right: /help
    first.type("/bye\n")
    assert first.ended() == 0
    second = terminal(folder, "-n", "2")
    second.type("\x1b[A\x1b[A\n")  # the line before /bye
    assert "forget the conversation" in second.until("leave (Ctrl-D")
    second.until(PROMPT)


def test_what_cannot_be_answered_leaves_the_conversation(terminal, folder) -> None:
    session = terminal(folder, "-n", "4", "--max-model-len", "32")
    session.say("hello")
    refused = session.say("word " * 40)
    assert "error: prompt has" in refused and "allowed: 1 to 31" in refused
    assert "error" not in session.say("ok")


def test_ctrl_c_while_an_answer_was_asked_for_leaves(environment, folder) -> None:
    words = ["hello", "--ignore-eos", "--max-model-len", "200000"]
    one = Terminal(environment, folder, *words)
    one.until("allowed (weights")
    time.sleep(1.5)
    one.type("\x03")
    shown = one.until("stopped · ")
    assert one.ended() == 130 and "Traceback" not in shown
    assert "leaked" not in one.rest()
    os.close(one.master)
