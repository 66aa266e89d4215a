"""From the words of a command line, and a YAML file that they name, to options and their values.

Invariant: every word is part of an option that exists, or there is a refusal for it; the command
line wins over the file.  What an option means is not known here.
"""

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import typer

from flyweight.arguments.options import NEGATIVE, Flag, Value
from flyweight.cli.help import HelpCommand, WholeWords
from flyweight.cli.parameters import OptionTable, Values, expand, make_row
from flyweight.cli.serve.file import Parts, merge_parts, put_part, read_config, read_part
from flyweight.cli.serve.options import GROUPS, OPTIONS, SUPPORTS
from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import shown

PROGRAM = "flyweight serve"
HELP = ("-h", "--help")
NOTES = (
    "A switch is turned off by --no-NAME.  Names may have underscores: --max_model_len.  One key "
    "of a JSON option can be given alone: --speculative-config.method ngram.  Options of vLLM that "
    "have no effect here are accepted with the value that describes this engine, and refused with "
    "any other."
)


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """What was requested, by the options' names; `models` holds the positional words.  `of_file`
    are the names that come from a file, `refusals` what could not be read.
    """

    options: dict[str, Value]
    models: list[str]
    of_file: frozenset[str] = field(default_factory=frozenset)
    refusals: tuple[str, ...] = ()


def read(words: Sequence[str]) -> ParsedOptions:
    """The options of a command line and of its file; `--help` prints and exits."""
    found = WordReader().read(words)
    command = make_command(None if found.wants_help else found.given)
    with command.make_context(PROGRAM, found.canonical, max_content_width=100) as context:
        values: Values = command.invoke(context)
    models = list(values.pop("models") or ())
    options: dict[str, Value] = {
        name.replace("_", "-"): value for name, value in values.items() if value not in (None, [])
    }
    refusals = list(found.refusals)
    theirs = read_config(options.pop("config", None), OPTIONS, refusals)
    if models or "model" in options:
        theirs.pop("model", None)
    of_file = frozenset(theirs) - frozenset(options)
    options = {**theirs, **options}
    merge_parts(options, found.parts)
    return ParsedOptions(options, models, of_file, tuple(refusals))


class WordReader:
    """Words as click reads them: `canonical`, where an option is `--name=value` or a switch, and
    the names of the `given` options.  `parts` are keys of options that are objects.
    """

    def __init__(self) -> None:
        self.canonical: list[str] = []
        self.given: set[str] = set()
        self.wants_help = False
        self.parts: Parts = {}
        self.refusals: list[str] = []
        self.known: Mapping[str, Flag] = index_spellings()

    def read(self, words: Sequence[str]) -> "WordReader":
        models: list[str] = []
        waiting = list(reversed(words))
        while waiting:
            word = waiting.pop()
            if word == "--":
                models += reversed(waiting)
                break
            if is_value(word):
                models.append(word)
            elif word in HELP:
                self.wants_help = True
                self.canonical.append(word)
            else:
                self._read_option(word, waiting)
        self.canonical += ["--", *models]
        return self

    def _read_option(self, word: str, waiting: list[str]) -> None:
        """Reads an option and its values from the words after it."""
        path, equals, value = word.partition("=")
        name, dot, keys = path.partition(".")
        if word.startswith("--"):
            name = name.replace("_", "-")
        if dot and name.removeprefix("--") in OPTIONS:
            self._read_part(f"{name}.{keys}", value if equals else None, waiting)
            return
        flag = self.known.get(name + dot + keys)
        if flag is None and not word.startswith("--") and word[:2] in self.known:
            flag, name, equals, value = self.known[word[:2]], word[:2], "=", word[2:]
        if flag is None:
            hint = nearest(name, self.known)
            self.refusals.append(f"unknown option {shown(path)}{hint}; see {PROGRAM} --help")
            if waiting and is_value(waiting[-1]):
                waiting.pop()  # perhaps the value of the option
        elif flag.kind != "switch":
            self._read_values(flag, name, [value] if equals else take_values(flag, waiting))
        elif equals:
            no = name.startswith("--no-")
            other = "--" + name.removeprefix("--no-") if no else f"--no-{name.lstrip('-')}"
            refusal = f"{shown(word)}: {name} takes no value; allowed: {name}, {other}"
            self.refusals.append(refusal)
        else:
            self.given.add(flag.name)
            self.canonical.append(name)

    def _read_values(self, flag: Flag, name: str, values: Sequence[str]) -> None:
        self.given.add(flag.name)
        self.canonical += [f"--{flag.name}={value}" for value in values]
        if not values:
            count = "at least one argument" if flag.kind == "words" else "one argument"
            self.refusals.append(
                f"{name}: expected {count}; one that begins with - is written {name}=-...; "
                f"see {PROGRAM} --help"
            )

    def _read_part(self, path: str, value: str | None, waiting: list[str]) -> None:
        if value is None:
            if not waiting or not is_value(waiting[-1]):
                self.refusals.append(f"{path}: expected one argument")
                return
            value = waiting.pop()
        try:
            put_part(self.parts, path, read_part(path, value), OPTIONS)
        except ConfigError as error:
            self.refusals.append(str(error))


def take_values(flag: Flag, waiting: list[str]) -> list[str]:
    """The words that are an option's values.  A word after it that looks like another short option
    may be a secret: it is dropped, and never shown.
    """
    values: list[str] = []
    while waiting and is_value(waiting[-1]) and (flag.kind == "words" or not values):
        values.append(waiting.pop())
    after = waiting[-1] if waiting and not values else "--"
    if not after.startswith("--") and after not in HELP and after[:2] not in index_spellings():
        waiting.pop()
    return values


def is_value(word: str) -> bool:
    """Whether a word is no option."""
    name = word.partition("=")[0]
    dashed = word.startswith("-") and word != "-" and " " not in name
    return not dashed or NEGATIVE.fullmatch(word) is not None


@cache
def index_spellings() -> Mapping[str, Flag]:
    """Options by everything that spells them."""
    known = {spelling: flag for flag in OPTIONS.values() for spelling in flag.spellings}
    return known | {f"--no-{f.name}": f for f in known.values() if f.kind == "switch"}


class ServeHelp(HelpCommand):
    """The help of `serve`, where --no- stands before the name of a switch."""

    REST = "Help"

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, SwitchNames(formatter))


class SwitchNames(WholeWords):
    """Writes the names of switches without their negative forms."""

    def write_dl(self, rows: Iterable[tuple[str, str]], **given: Any) -> None:
        super().write_dl([(name.split(" / ")[0], text) for name, text in rows], **given)


def make_command(names: Collection[str] | None = None) -> Any:
    """The command of click that has these options, or all: an option costs a millisecond."""
    rows = [
        make_option(flag, group)
        for group, flags in GROUPS.items()
        for flag in flags
        if names is None or flag.name in names
    ]
    rows += [make_option(SUPPORTS[name].flag) for name in SUPPORTS if names and name in names]

    def serve(
        models: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[MODEL]...",
                help="A .gguf file, a folder, or a name on the Hub; NAME=MODEL names it.  "
                "[default: stories]",
                show_default=False,
            ),
        ] = None,
        *,
        options: Annotated[Values, OptionTable(rows)],
    ) -> Values:
        """Serve models over HTTP: the APIs of OpenAI, Anthropic, Ollama and llama.cpp.

        Without MODEL it serves the bundled story model.  Of several models the first is loaded at
        once, the others when a request names them.
        """
        return {"models": models, **options}

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    names = {"help_option_names": [*HELP]}
    app.command(cls=ServeHelp, epilog=NOTES, context_settings=names)(expand(serve))
    return typer.main.get_command(app)


def make_option(flag: Flag, group: str = "") -> inspect.Parameter:
    """The parameter of an option; hidden where it is in no group."""
    text = f"{flag.help}  [default: {flag.default}]" if flag.default else flag.help
    kind: Any = {"switch": bool, "words": list[str]}.get(flag.kind, str)
    spellings = flag.spellings
    if flag.kind == "switch":
        spellings = (f"--{flag.name}/--no-{flag.name}", *flag.also)
    return make_row(
        flag.key, kind | None, None, *spellings, metavar=flag.metavar or None, help=text,
        show_default=False, rich_help_panel=group or None, hidden=not group,
    )  # fmt: skip
