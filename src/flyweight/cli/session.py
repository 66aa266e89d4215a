"""Talking at a terminal: streaming one answer, and the interactive session with history, line
editing and commands.

Invariant: Ctrl-C, however often, ends an answer, not the session; a prompt that cannot be answered
leaves the conversation as it was.
"""

import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from rich.console import Console

from flyweight.asking import Message
from flyweight.cli.show import figures, stats_table
from flyweight.errors import FlyweightError, RequestError, nearest
from flyweight.llm import LLM
from flyweight.prompts import Prompt
from flyweight.results import RequestOutput
from flyweight.types import SamplingParams
from flyweight.untrusted import one_line, printable

HELP = """\
/help   this list
/reset  forget the conversation
/stats  figures of the last answer and of the engine
/bye    leave (Ctrl-D does too; Ctrl-C stops an answer)"""
HISTORY = 1000  # lines kept between sessions
CLOSERS = tuple(".,;:!?)'\"")


class Session:
    """A conversation.  Models with a chat template get messages; others go on with the text so
    far.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str, console: Console) -> None:
        self.llm, self.params, self.system, self.console = llm, params, system, console
        self.adapter = next(iter(llm.settings.adapters), "")  # the command line takes one
        self.chats = llm.tokenizer.chat_template is not None
        self.messages: list[Message] = []
        self.text = ""
        self.last: RequestOutput | None = None
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.text = self.system

    def extended(self, line: str) -> Prompt:
        """The conversation with one more thing said, as a prompt."""
        if self.chats:
            self.messages.append({"role": "user", "content": line})
            return self.llm.conversation(self.messages)
        apart = self.text and not self.text[-1].isspace() and not line.startswith(CLOSERS)
        self.text += " " + line if apart else line
        return self.text

    def answer(self, line: str, *, going_on: bool = False) -> None:
        """Prints an answer as it comes, then a line of figures on stderr.  Ctrl-C ends it; the
        KeyboardInterrupt goes no further when the session is `going_on`.
        """
        before = list(self.messages), self.text
        try:
            prompt = self.extended(line)
            if sys.stdout.isatty() and not self.chats and not going_on:
                sys.stdout.write(line)  # what is gone on with is part of what a person reads
            stopped = self._stream(prompt)
        except (FlyweightError, KeyboardInterrupt):
            self.messages, self.text = before
            raise
        said = self.last.outputs[0].text if self.last else ""
        self.text += said
        if self.chats:
            self.messages.append({"role": "assistant", "content": said})
        if self.last is not None:
            note = "stopped · " if stopped else ""
            self.console.print(f"{note}{self._figures(self.last)}", style="dim", soft_wrap=True)
        if stopped and not going_on:
            raise KeyboardInterrupt

    def _stream(self, prompt: Prompt) -> bool:
        """Writes the answer to stdout and keeps it in `last`; True when Ctrl-C ended it.  Pressed
        again while the request is given up, it has nothing left to end.
        """
        self.last, stopped = None, False
        try:
            with closing(self.llm.stream(prompt, self.params, adapter=self.adapter)) as outputs:
                for self.last in outputs:
                    sys.stdout.write(self.last.outputs[0].delta)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            stopped = True
        sys.stdout.write("\n")
        sys.stdout.flush()
        return stopped

    def talk(self) -> None:
        """Reads lines until /bye or the end of input."""
        edit_lines()
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
            line = input(">>> ").strip()
        except EOFError:
            print()
            return False
        try:
            if line != "/bye":
                self._obey(line)
        except FlyweightError as error:
            text = str(error)
            what = f"error: {one_line(text, len(text))}{self._way_out(error)}"
            self.console.print(what, style="red", soft_wrap=True)
        return line != "/bye"

    def _way_out(self, error: FlyweightError) -> str:
        """What a conversation that has grown too long can do."""
        begun = self.text != self.system or len(self.messages) > bool(self.system)
        long = isinstance(error, RequestError) and error.field == "prompt" and begun
        return "; /reset forgets the conversation" if long else ""

    def _obey(self, line: str) -> None:
        commands: dict[str, Callable[[], None]] = {
            "/help": lambda: self.console.print(HELP, highlight=False),
            "/reset": self.reset,
            "/stats": self._stats,
        }
        word = line.split()[0] if line else ""
        if word in commands:
            commands[word]()
        elif word.startswith("/"):
            known = [*commands, "/bye"]
            what = f"unknown command {printable(word)}{nearest(word, known)}"
            self.console.print(f"{what}; /help lists them", highlight=False)
        elif line:
            self.answer(line, going_on=True)

    def _figures(self, out: RequestOutput) -> str:
        return figures(out, self.llm.loaded.limits.max_model_len)

    def _stats(self) -> None:
        if self.last is not None:
            self.console.print(f"last answer: {self._figures(self.last)}", highlight=False)
        self.console.print(stats_table(self.llm))


def edit_lines() -> None:
    """Arrow keys, and a history kept between sessions, where there is a readline library and a
    home.
    """
    try:
        import atexit
        import readline
    except ImportError:
        return
    try:
        file = Path("~/.local/state/flyweight/history").expanduser()
    except RuntimeError:  # nobody's home: a user id that no list of users knows
        return
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY)

    def keep() -> None:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)

    atexit.register(keep)
