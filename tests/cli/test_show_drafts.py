"""`flyweight run --show-drafts`: the text is the same, and accepted draft tokens are in colour."""

import io
from collections.abc import Callable
from types import SimpleNamespace

from flyweight.cli.drafted import GREEN, PLAIN, DraftPainter
from flyweight.outputs import CompletionOutput

Command = Callable[..., SimpleNamespace]
CONFIG = '{"num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": false}'
ASKED = ("stories", "One day, a cat saw a cat. One day, a cat", "-n", "60", "--temperature", "0")


def paint(*steps: tuple[list[int], str]) -> str:
    """Steps with the tokens so far and the text that they add; a token is a letter."""
    out = io.StringIO()
    painter = DraftPainter(out, lambda ids: "".join(map(chr, ids)))
    for ids, delta in steps:
        painter.write(CompletionOutput(index=0, text="", token_ids=ids, delta=delta))
    return out.getvalue()


def test_all_but_the_last_token_of_a_step_are_drafted() -> None:
    a, b, c, d = map(ord, "abcd")
    assert paint(([a], "a"), ([a, b, c, d], "bcd")) == f"a{GREEN}bc{PLAIN}d"
    assert paint(([a], "a"), ([a, b], "b"), ([a, b, c], "c")) == "abc"


def test_text_that_is_held_back_is_never_lost() -> None:
    a, b, c, d = map(ord, "abcd")
    assert paint(([a], ""), ([a, b, c], "a"), ([a, b, c, d], "bcd")) == f"{GREEN}a{PLAIN}bcd"


def test_the_answer_is_the_same(command: Command) -> None:
    plain = command("run", *ASKED)
    shown = command("run", *ASKED, "--speculative-config", CONFIG, "--show-drafts")
    assert shown.code == 0 and GREEN in shown.out
    text = shown.out.replace(GREEN, "").replace(PLAIN, "")
    assert text.split() == plain.out.split()


def test_what_shows_no_drafts_is_refused(command: Command) -> None:
    assert "needs --speculative-config" in command("run", *ASKED, "--show-drafts").err
    broken = command("run", *ASKED, "--speculative-config", '{"num_speculative_tokens": 0}')
    assert broken.code == 2 and "num_speculative_tokens = 0" in broken.err
    both = command("run", *ASKED, "--speculative-config", CONFIG, "--show-drafts", "--json")
    assert both.code == 2 and "--show-drafts excludes --json" in both.err
