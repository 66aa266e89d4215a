"""`flyweight`: the command and its error policy.

Invariant: a user's mistake, and an output that cannot be written, is one line on stderr (options of
a server that cannot be are a line each) and exit code 2, Ctrl-C is exit code 130, and none shows a
traceback.  Any other exception is a bug of ours and stays visible.  What computes is imported by
the commands when they run, so that help is immediate.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper, UnsupportedOperation
from typing import Annotated, Any, TextIO

import typer

from flyweight import __version__
from flyweight.cli import (
    advise,
    batch,
    bench,
    check,
    compare,
    compile,
    eval_classify,
    eval_tasks,
    explain,
    hub,
    imatrix,
    inspect,
    plan,
    prompt,
    prove,
    ps,
    quantize,
    run,
    serve,
    stamp,
    stop,
    tokenize,
    train_heads,
    tune,
)
from flyweight.cli import eval as evaluation
from flyweight.cli.bench.refusals import find_refusal
from flyweight.cli.help import HelpCommand, make_group
from flyweight.cli.misspelt import suggest_command
from flyweight.errors import FlyweightError, RankLost, nearest
from flyweight.validation.untrusted import one_line

WRONG, STOPPED = 2, 130
# What an option expects, by pydantic's name of the check that failed.
EXPECTED = {"int_parsing": "a whole number", "float_parsing": "a number"}

app = make_group(name="flyweight", pretty_exceptions_enable=False)
app.command("run", cls=HelpCommand)(run.run)
app.command("batch", cls=HelpCommand)(batch.batch)
app.command("inspect", cls=HelpCommand)(inspect.inspect)
app.command("explain", cls=HelpCommand)(explain.explain)
app.command("advise", cls=HelpCommand)(advise.advise)
app.command("tokenize", cls=HelpCommand)(tokenize.tokenize)
app.command("check", cls=HelpCommand)(check.check)
app.command("compile", cls=HelpCommand)(compile.compile_model)
app.command("quantize", cls=HelpCommand)(quantize.quantize)
app.command("imatrix", cls=HelpCommand)(imatrix.imatrix)
app.command("train-heads", cls=HelpCommand)(train_heads.train_heads)
app.command("pull", cls=HelpCommand)(hub.pull)
app.command("models", cls=HelpCommand)(hub.models)
app.command("rm", cls=HelpCommand)(hub.rm)
app.command("serve", cls=serve.ServeCommand, context_settings=serve.WORDS)(serve.serve)
app.command("stop", cls=HelpCommand)(stop.stop)
app.command("ps", cls=HelpCommand)(ps.ps)
app.command("tune", cls=HelpCommand)(tune.tune)
app.add_typer(bench.app, name="bench")
app.add_typer(plan.app, name="plan")
app.command("prove", cls=HelpCommand)(prove.prove)
evaluation.app.command("stamp", cls=HelpCommand)(stamp.stamp)
evaluation.app.command("compare", cls=HelpCommand)(compare.compare)
evaluation.app.command("tasks", cls=HelpCommand)(eval_tasks.tasks)
evaluation.app.command("classify", cls=HelpCommand)(eval_classify.classify)
bench.app.command("quant", cls=HelpCommand)(compare.compare)
app.add_typer(evaluation.app, name="eval")
app.add_typer(prompt.app, name="prompt")


@app.command("version", cls=HelpCommand)
def version() -> None:
    """Print the version."""
    print(f"flyweight {__version__}")


def show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def flyweight(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Run, serve and measure language models on a CPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns its exit code."""
    prepare_streams()
    if sys.stdout is None:
        return fail("stdout is closed; send it to /dev/null if it is not wanted")
    group: Any = typer.main.get_command(app)
    words = normalize_words(sys.argv[1:] if argv is None else argv, group) or ["--help"]
    try:
        result = group.main(words, prog_name="flyweight", standalone_mode=False)
        sys.stdout.flush()  # what is still held back may not fit the disk
        return result if isinstance(result, int) else 0
    except FlyweightError as error:
        return fail(*error.lines)
    except RankLost as lost:
        fail(str(lost))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return STOPPED
    except SystemExit as leaving:  # a reader that closed its pipe
        return leaving.code if isinstance(leaving.code, int) else 1
    except OSError as error:
        if not is_unwritable(sys.stdout):
            raise
        return 1 if isinstance(error, BrokenPipeError) else fail(f"stdout: {error.strerror}")
    except Exception as error:
        if hasattr(error, "format_message"):  # what typer raises for a wrong command line
            return fail(explain_misuse(error, words))
        raise


def prepare_streams() -> None:
    """What the encoding of a stream lacks becomes `?`; a closed stderr says nothing."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, TextIOWrapper):
            with suppress(UnsupportedOperation):  # it has been read from already
                stream.reconfigure(errors="replace")


def is_unwritable(stream: TextIO) -> bool:
    """Whether nothing more can leave, tried with a line end.  What is held back is dropped: the
    interpreter tries once more at its end, and would complain in its own words.
    """
    try:
        stream.write("\n")  # a flush alone has nothing to do where Python runs unbuffered
        stream.flush()
    except OSError:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return True
    return False


def normalize_words(words: Sequence[str], group: Any) -> list[str]:
    """`--max_model_len=5` is `--max-model-len=5`: both spellings of the command's options are
    taken; an option of a list is said once more before each of its words.  Prompts and values stay
    as they are.
    """
    params = find_command(words, group).params
    takes = {
        name: not getattr(param, "is_flag", True)
        for param in params
        for name in (*param.opts, *param.secondary_opts)
    }
    several = find_list_options(params)
    done: list[str] = []
    value = False  # whether this word is the one before's
    listed = ""  # the option of a list whose words these are
    for i, word in enumerate(words):
        name, equals, rest = word.partition("=")
        name = name.replace("_", "-")
        if not value and listed and not word.startswith("-"):
            done.append(listed)
            value = True
        if value:
            value = False
        elif word == "--":
            return [*done, *words[i:]]
        elif word.startswith("--"):
            listed = name if name in several else ""
            if name in takes:
                word, value = name + equals + rest, takes[name] and not equals
        elif word.startswith("-"):
            value = wants_value(word, takes)
        done.append(word)
    return done


def find_list_options(params: Sequence[Any]) -> set[str]:
    """Options that take several words, `--goodput ttft:500 tpot:50`, where no word can be anything
    else.
    """
    if any(param.param_type_name == "argument" for param in params):
        return set()
    return {name for param in params if getattr(param, "multiple", False) for name in param.opts}


def wants_value(letters: str, takes: Mapping[str, bool]) -> bool:
    """Whether `-n` or `-vn` goes on in the next word; in `-n5` the rest is the value."""
    at = next((i for i, letter in enumerate(letters) if i and takes.get(f"-{letter}")), None)
    return at == len(letters) - 1


def find_command(words: Sequence[str], group: Any) -> Any:
    """The command, or the group of commands, that the words name."""
    for word in words:
        inner = getattr(group, "commands", {})
        if word.startswith("-"):
            continue
        if word not in inner:
            break
        group = inner[word]
    return group


def find_command_word(words: Sequence[str], depth: int) -> str:
    """The word that should name a command `depth` groups down; empty when there is none."""
    return "".join([word for word in words if not word.startswith("-")][depth : depth + 1])


def explain_misuse(error: Any, words: Sequence[str]) -> str:
    """One line for a wrong command line, with the nearest valid option or command."""
    context = getattr(error, "ctx", None)
    message: str = error.format_message()
    if context is None:
        return message.rstrip(".")
    option = getattr(error, "option_name", None)
    known = [name for p in context.command.params for name in p.opts]
    names = list(getattr(getattr(error, "param", None), "opts", ()))
    value = find_last_value(words, names)
    if value is not None:
        message = f"{names[-1]} = {value!r}: {describe_expected(error)}"
    elif option and option not in known:
        unknown = f"unknown option {option}{nearest(option, known)}"
        message = find_refusal(context.command_path, option) or unknown
    elif message.startswith("No such command"):
        word = find_command_word(words, len(context.command_path.split()) - 1)
        commands = list(context.command.commands)
        likely = suggest_command(word, context)
        message = f"unknown command {word!r}{likely}; known: {', '.join(commands)}"
    return f"{message.rstrip('.')}; see {context.command_path} --help"


def describe_expected(error: Any) -> str:
    """What an option expects, from the failed check of its value."""
    list_failures = getattr(error.__cause__, "errors", list)
    kinds = [failure["type"] for failure in list_failures()]
    expected = next((EXPECTED[kind] for kind in kinds if kind in EXPECTED), None)
    return f"{expected} expected" if expected else str(error.message.split(",")[0])


def find_last_value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """What a command line says an option is."""
    found = None
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else "".join(words[i + 1 : i + 2])
    return found


def fail(*messages: str) -> int:
    """Says what is wrong, each thing in one line."""
    for message in messages:
        print(f"error: {one_line(message, len(message))}", file=sys.stderr)
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
