"""Answers at a terminal: streaming one, and the session that reads prompts and commands.

Invariant: Ctrl-C, however often, ends an answer, not the session; a prompt that cannot be answered
leaves the conversation as it was.
"""

import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace

from rich.console import Console

from flyweight.cli import lines
from flyweight.cli.conversation import Conversation, ConversationTurn
from flyweight.cli.drafted import DraftPainter
from flyweight.cli.show import describe_figures, describe_stats
from flyweight.cli.wrap import WordWrapper
from flyweight.errors import FlyweightError, RequestError
from flyweight.llm import LLM
from flyweight.outputs import RequestOutput
from flyweight.requests.prompts import Prompt
from flyweight.types import SamplingParams
from flyweight.validation.untrusted import one_line

CONTEXT = ("shift", "full")  # what happens when it is full: the oldest turns go, or a refusal


class ChatSession:
    """A conversation with one model; `context` is one of CONTEXT.  `obey` runs a line that begins
    with `/`, and returns False where it ends the session.  With `show_drafts` accepted draft tokens
    are in colour.
    """

    show_drafts = False

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        system: str,
        console: Console,
        obey: "Callable[[ChatSession, str], bool]",
        context: str = "shift",
    ) -> None:
        self.obey = obey
        self.llm, self.params, self.console = llm, params, console
        self.adapter = next(iter(llm.settings.adapters), "")  # the command line takes one
        self.conversation = Conversation(llm, system, shifts=context == "shift")
        self.last: RequestOutput | None = None
        self.retries = 0

    def show(self, text: str) -> None:
        """Shows a line of ours."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def reset(self) -> None:
        self.conversation.turns = []
        self.forget_last()

    def forget_last(self) -> None:
        self.last, self.retries = None, 0

    def answer(self, line: str, *, going_on: bool = False) -> None:
        """Prints an answer as it comes, then a line of figures on stderr.  Ctrl-C ends it; the
        KeyboardInterrupt goes no further when the session is `going_on`.
        """
        before = list(self.conversation.turns)
        try:
            prompt = self._prompt(line)
            # What is gone on with is part of what a person reads.
            shown = (
                line if sys.stdout.isatty() and not self.conversation.chats and not going_on else ""
            )
            stopped = self._stream(prompt, shown)
        except (FlyweightError, KeyboardInterrupt):
            self.conversation.turns = before
            raise
        said = self.last.outputs[0].text if self.last else ""
        self.conversation.turns.append(ConversationTurn(line, said))
        if self.last is not None:
            note = "stopped · " if stopped else ""
            self.console.print(f"{note}{self._figures(self.last)}", style="dim", soft_wrap=True)
        if stopped and not going_on:
            raise KeyboardInterrupt

    def _prompt(self, line: str) -> Prompt:
        """The prompt that a line makes; the oldest turns are dropped when the context is full."""
        dropped = self.conversation.overflow(line, self.params.max_tokens)
        prompt = self.conversation.prompt(line, dropped)
        if dropped:
            count = len(self.conversation.turns)
            self.conversation.turns = self.conversation.turns[dropped:]
            self.show(f"context full: dropped the oldest {dropped} of {count} turns")
        return prompt

    def retry(self) -> None:
        """Answers the last prompt again; with a seed, the n-th time with seed + n."""
        if not self.conversation.turns:
            raise RequestError("nothing to answer again; write a prompt first")
        turns, self.retries = self.conversation.turns, self.retries + 1
        self.conversation.turns = turns[:-1]
        try:
            self.answer(turns[-1].said, going_on=True)
        except (FlyweightError, KeyboardInterrupt):
            self.conversation.turns = turns
            raise

    def _stream(self, prompt: Prompt, shown: str) -> bool:
        """Writes the answer to stdout after what is `shown` already, and keeps it in `last`; True
        when Ctrl-C ended it.  Pressed again while the request is given up, it has nothing to end.
        """
        self.last, stopped = None, False
        out = WordWrapper(sys.stdout, measure_window)
        params = self.params
        if self.retries and params.seed is not None:
            params = replace(params, seed=params.seed + self.retries)
        try:
            with closing(self.llm.stream(prompt, params, adapter=self.adapter)) as outputs:
                out.write(shown)
                if self.show_drafts:
                    out.end()  # colours are not wrapped
                painter = DraftPainter(sys.stdout, self.llm.tokenizer.decode)
                for self.last in outputs:
                    said = self.last.outputs[0]
                    if self.show_drafts:
                        painter.write(said)
                    else:
                        out.write(said.delta)
        except KeyboardInterrupt:
            stopped = True
        out.end()
        sys.stdout.write("\n")
        sys.stdout.flush()
        return stopped

    def run(self) -> None:
        """Reads prompts and commands until /bye or the end of input."""
        lines.edit_lines()
        self.console.print("/help lists commands; Ctrl-D leaves", style="dim")
        going, apart = True, False
        while going:
            try:
                if apart:
                    print()
                apart = False
                going = self._turn()
            except KeyboardInterrupt:  # no more is done here, where another would fall outside
                apart = True

    def _turn(self) -> bool:
        """Reads a line and obeys it; False when it was the last."""
        try:
            line = lines.read()
        except EOFError:
            print()
            return False
        try:
            if line.startswith("/") and ("\n" not in line or line.startswith("/system")):
                return self.obey(self, line)
            if line:
                self.retries = 0
                self.answer(line, going_on=True)
        except FlyweightError as error:
            text = str(error)
            what = f"error: {one_line(text, len(text))}{self._way_out(error)}"
            self.console.print(what, style="red", soft_wrap=True)
        return True

    def _way_out(self, error: FlyweightError) -> str:
        """What a conversation that has grown too long can do."""
        long = (
            isinstance(error, RequestError) and error.path == "prompt" and self.conversation.turns
        )
        if not long:
            return ""
        shifting = "" if self.conversation.shifts else ", --context shift drops its oldest turns"
        return f"; /reset forgets the conversation{shifting}"

    def turns(self) -> str:
        """How many there are, in words."""
        count = len(self.conversation.turns)
        return "1 turn" if count == 1 else f"{count} turns"

    def _figures(self, out: RequestOutput) -> str:
        return describe_figures(out, self.conversation.longest)

    def stats(self) -> None:
        if self.last is not None:
            self.show(f"Last answer: {self._figures(self.last)}.")
        self.show(f"Conversation: {self.turns()}{self._describe_cache()}.")
        self.show("\n".join(describe_stats(self.llm.stats(), self.llm.settings.block_size)))

    def _describe_cache(self) -> str:
        """How much of the context the conversation takes, where it has begun."""
        if self.last is None:
            return ""
        taken = len(self.last.prompt_token_ids) + len(self.last.outputs[0].token_ids)
        return f", {taken} of {self.conversation.longest} tokens of the context"


def measure_window() -> int:
    """The width of the terminal stdout goes to, in columns; 0 when it goes elsewhere."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns
    return 0
