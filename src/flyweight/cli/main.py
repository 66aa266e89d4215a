"""`flyweight`: the command and its error policy.

Invariant: a user's mistake is one line on stderr and exit code 2, Ctrl-C is exit code 130, and
neither shows a traceback.  Any other exception is a bug of ours and stays visible.  What computes
is imported by the commands when they run, so that help is immediate.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flyweight import __version__
from flyweight.cli import inspect, run
from flyweight.errors import FlyweightError, nearest

WRONG, STOPPED = 2, 130

app = typer.Typer(
    name="flyweight",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("run")(run.run)
app.command("inspect")(inspect.inspect)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"flyweight {__version__}")
        raise typer.Exit


@app.callback()
def flyweight(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Language models on the processor you have."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    words = [dashed(word) for word in (sys.argv[1:] if argv is None else argv)] or ["--help"]
    try:
        result = typer.main.get_command(app).main(
            words, prog_name="flyweight", standalone_mode=False
        )
        return result if isinstance(result, int) else 0
    except FlyweightError as error:
        return fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return STOPPED
    except SystemExit as leaving:  # a reader that closed its pipe
        return leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        if hasattr(error, "format_message"):  # what typer raises for a wrong command line
            return fail(misuse(error, words))
        raise


def dashed(word: str) -> str:
    """`--max_model_len=5` is `--max-model-len=5`: both spellings of an option are taken."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def misuse(error: Any, words: Sequence[str]) -> str:
    """One line for a wrong command line, with the nearest valid option or command."""
    context = getattr(error, "ctx", None)
    message: str = error.format_message()
    if context is None:
        return message
    option = getattr(error, "option_name", None)
    known = [name for p in context.command.params for name in p.opts]
    names = list(getattr(getattr(error, "param", None), "opts", ()))
    value = last_value(words, names)
    if value is not None:
        message = f"{names[-1]} = {value!r}: {error.message.split(',')[0]}"
    elif option and option not in known:
        message = f"unknown option {option}{nearest(option, known)}"
    elif message.startswith("No such command"):
        word = message.split("'")[1]
        commands = list(context.command.commands)
        message = f"unknown command {word!r}{nearest(word, commands)}; known: {', '.join(commands)}"
    return f"{message.rstrip('.')}; see {context.command_path} --help"


def last_value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """What a command line says an option is."""
    found = None
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else "".join(words[i + 1 : i + 2])
    return found


def fail(message: str) -> int:
    """Says what is wrong, in one line."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
