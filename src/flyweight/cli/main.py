"""`flyweight`: the command and its error policy.

Invariant: a user's mistake is one line on stderr and exit code 2, Ctrl-C is exit code 130, and neither shows a traceback.
"""

import sys
from collections.abc import Sequence

import click
import typer

from flyweight.cli import inspect, run
from flyweight.errors import FlyweightError, nearest

app = typer.Typer(
    name="flyweight",
    help="LLM inference on the machine you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("inspect")(inspect.inspect)


@app.callback()
def flyweight() -> None:
    """LLM inference on the machine you have."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    words = [dashed(w) for w in (sys.argv[1:] if argv is None else argv)]
    try:
        result = typer.main.get_command(app).main(words, prog_name="flyweight", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except FlyweightError as error:
        return fail(str(error))
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        return fail(describe(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def script() -> None:
    """The console script."""
    sys.exit(main())


def dashed(word: str) -> str:
    """`--max_model_len=5` is `--max-model-len=5`: both spellings of an option are taken."""
    if not word.startswith("--"):
        return word
    name, eq, value = word.partition("=")
    return name.replace("_", "-") + eq + value


def describe(error: click.ClickException) -> str:
    """One line for a misuse of the command line, with the nearest valid option."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = [o for p in error.ctx.command.params for o in p.opts]
        return f"unknown option {error.option_name}{nearest(error.option_name, known)}; see flyweight {error.ctx.info_name} --help"
    return " ".join(error.format_message().split())


def fail(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    script()
