"""Talking at a terminal: streaming one answer, and the interactive session with history, line editing and commands."""

import os
import sys
from pathlib import Path

from rich.console import Console

from flyweight.cli.show import figures
from flyweight.errors import FlyweightError
from flyweight.llm import LLM
from flyweight.results import RequestOutput
from flyweight.text.chat import Message, render
from flyweight.types import SamplingParams

HELP = """\
/help   this list
/reset  forget the conversation
/stats  figures of the last answer and of the engine
/bye    leave (Ctrl-D does too; Ctrl-C stops an answer)"""
HISTORY = 1000


def stream(llm: LLM, prompt: str, params: SamplingParams, console: Console) -> RequestOutput | None:
    """Prints an answer as it comes, then one line of figures on stderr.  Ctrl-C stops the answer, not the program."""
    last = None
    try:
        for last in llm.stream(prompt, params):
            sys.stdout.write(last.outputs[0].delta)
            sys.stdout.flush()
    except KeyboardInterrupt:
        console.print("\n[dim]stopped[/dim]")
        if not sys.stdin.isatty():
            raise
    sys.stdout.write("\n")
    sys.stdout.flush()
    if last is not None:
        console.print(f"[dim]{figures(last)}[/dim]", highlight=False)
    return last


class Session:
    """A conversation.  Models with a chat template get messages; others simply continue the text so far."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str, console: Console) -> None:
        self.llm, self.params, self.system, self.console = llm, params, system, console
        self.messages: list[Message] = []
        self.text = ""
        self.last: RequestOutput | None = None

    def opening(self, prompt: str) -> str:
        """The text to complete for a first prompt."""
        self.reset()
        return self._extend(prompt)

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.text = self.system

    def talk(self) -> None:
        """Reads lines until /bye or the end of input."""
        self.reset()
        _line_editing()
        self.console.print("[dim]/help lists commands; Ctrl-D leaves[/dim]")
        while True:
            try:
                line = input(">>> ").strip()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                continue
            if line == "/bye":
                return
            if line:
                self._answer(line)

    def _answer(self, line: str) -> None:
        commands = {"/help": self._help, "/reset": self.reset, "/stats": self._stats}
        if line in commands:
            commands[line]()
            return
        if line.startswith("/"):
            self.console.print(f"unknown command {line.split()[0]}; /help lists them", highlight=False)
            return
        before = list(self.messages), self.text
        try:
            out = stream(self.llm, self._extend(line), self.params, self.console)
        except FlyweightError as error:
            self.messages, self.text = before
            self.console.print(f"error: {error}", highlight=False)
            return
        self._remember(out)

    def _extend(self, line: str) -> str:
        template = self.llm.tokenizer.chat_template
        if template is None:
            self.text += line
            return self.text
        self.messages.append({"role": "user", "content": line})
        return render(template, self.messages, self.llm.tokenizer)

    def _remember(self, out: RequestOutput | None) -> None:
        self.last = out
        answer = out.outputs[0].text if out else ""
        self.text += answer
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.append({"role": "assistant", "content": answer})

    def _help(self) -> None:
        self.console.print(HELP, highlight=False)

    def _stats(self) -> None:
        if self.last is not None:
            self.console.print(figures(self.last), highlight=False)
        for name, value in self.llm.stats().items():
            self.console.print(f"{name}: {value}", highlight=False)


def _line_editing() -> None:
    """Arrow keys and a history kept between sessions, where the readline library is there."""
    try:
        import atexit
        import readline
    except ImportError:
        return
    state = Path(os.path.expanduser("~")) / ".local" / "state" / "flyweight"
    history = state / "history"
    try:
        state.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(history)
    except OSError:
        pass
    readline.set_history_length(HISTORY)
    atexit.register(_save_history, readline.write_history_file, history)


def _save_history(write: object, history: Path) -> None:
    try:
        write(history)  # type: ignore[operator]
    except OSError:
        return
