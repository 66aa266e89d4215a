"""The interactive session, typed at a pseudo-terminal: streaming, commands, history, Ctrl-C and
Ctrl-D, and the second turn's prefix hit.
"""

import os
import re
import time
from collections.abc import Iterator

import pytest

from terminal import PROMPT, Terminal


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
    assert "Last answer: " in stats and "Conversation: 2 turns, " in stats
    assert f", {cached} found in the prefix cache." in stats
    assert "blocks of 8 tokens hold" in stats
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


def test_lines_are_edited_and_remembered(terminal, folder, tmp_path) -> None:
    first = terminal(folder, "-n", "2")
    first.say("/hexp\x1b[D\x7fl\x1b[C")  # left, rubout, l, right: /help
    first.say("\x1b[200~one line\rand another\x1b[201~")
    first.type("/bye\n")
    assert first.ended() == 0
    second = terminal(folder, "-n", "2")
    second.say("\x1b[A\x1b[A")  # what was pasted before /bye: one entry
    second.say(f"/save {tmp_path / 'a.json'}")
    assert '"content": "one line\\nand another"' in (tmp_path / "a.json").read_text("utf-8")
    assert "/stats" in second.say("\x1b[A" * 5)  # the line before it


def test_what_cannot_be_answered_leaves_the_conversation(terminal, folder) -> None:
    session = terminal(folder, "-n", "4", "--max-model-len", "32")
    session.say("hello")
    refused = session.say("word " * 40)
    assert "error: prompt has" in refused and "allowed: 1 to 31" in refused
    assert "error" not in session.say("ok")


def test_ctrl_c_while_an_answer_was_requested_leaves(environment, folder) -> None:
    words = ["hello", "--ignore-eos", "--max-model-len", "200000"]
    one = Terminal(environment, folder, *words)
    one.until("allowed (weights")
    time.sleep(1.5)
    one.type("\x03")
    shown = one.until("stopped · ")
    assert one.ended() == 130 and "Traceback" not in shown
    assert "leaked" not in one.rest()
    os.close(one.master)
