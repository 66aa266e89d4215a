"""From the words of a command line and the lines of a YAML file to what was asked for.

Invariant: what is returned holds options that exist, each with the kind of value it takes, and a
refusal for every word that is none of them; the command line wins.  What an option means is not
known here.
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import wrap
from typing import Any, NoReturn

from flyweight.arguments.flags import Flag
from flyweight.arguments.stance import Value
from flyweight.arguments.values import NEGATIVE
from flyweight.cli.serve import dotted
from flyweight.cli.serve.defaults import default
from flyweight.cli.serve.flags import GROUPS
from flyweight.cli.serve.unsupported import STANCES
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.validation.untrusted import read_bytes, shown

PROGRAM = "flyweight serve"
CONFIG_BYTES = 1 << 20
HELP = ("-h", "--help")
SUMMARY = """\
  Serve a model over HTTP: the APIs of OpenAI, Anthropic, Ollama and llama.cpp.

  Without MODEL it serves the story model inside the package."""
NOTES = """\
A switch is turned off by --no- before its name.  --max_model_len is --max-model-len.  A key of a
JSON option can be given by itself: --speculative-config.method ngram.  Options of vLLM that have no
effect here are accepted with the value that describes this engine, and refused with any other."""


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """What was asked for, by the options' names; `models` holds the positional words.  `of_file`
    are the names that come from a file, `refusals` what could not be read.
    """

    options: dict[str, Value]
    models: list[str]
    of_file: frozenset[str] = field(default_factory=frozenset)
    refusals: tuple[str, ...] = ()


def flags() -> dict[str, Flag]:
    """All options by name."""
    rows = [flag for group in GROUPS.values() for flag in group]
    return {flag.name: flag for flag in [*rows, *(stance.flag for stance in STANCES)]}


def read(words: Sequence[str]) -> ParsedOptions:
    """`--help` prints and leaves.  Raises `ConfigError` where words make no sense together."""
    parser = _parser()
    refusals: list[str] = []
    plain, parts = dotted.gathered([_dashed(word) for word in words], flags(), refusals)
    found = parser.parse_args(_understood(plain, refusals))
    given = {name: value for name, value in vars(found).items() if value is not None}
    models = given.pop("models")
    options: dict[str, Value] = {name.replace("_", "-"): v for name, v in given.items()}
    refusals += parser.missing
    theirs = _of_file(options.pop("config", None), refusals)
    if models or "model" in options:
        theirs.pop("model", None)
    of_file = frozenset(theirs) - frozenset(options)
    options = {**theirs, **options}
    dotted.merge(options, parts)
    return ParsedOptions(options, models, of_file, tuple(refusals))


def _of_file(file: Value | None, refusals: list[str]) -> dict[str, Value]:
    if not isinstance(file, str):
        return {}
    try:
        return read_file(Path(file).expanduser(), refusals)
    except (ConfigError, CheckpointError) as error:
        refusals.append(str(error))
        return {}


def _understood(words: Sequence[str], refusals: list[str]) -> list[str]:
    """The words of options that exist; the others are refused, with whatever stands after them."""
    known = {spelling: flag for flag in flags().values() for spelling in flag.spellings}
    known |= {f"--no-{flag.name}": flag for flag in known.values() if flag.kind == "switch"}
    done: list[str] = []
    skips = False  # whether this word may be the value of one that is unknown
    for i, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if word == "--":
            return [*done, *words[i:]]
        if not word.startswith("-") or word == "-" or " " in name or NEGATIVE.fullmatch(word):
            done += [] if skips else [word]
            continue
        flag = known.get(name) or (None if word.startswith("--") else known.get(word[:2]))
        skips = flag is None and name not in HELP
        if skips and not word.startswith("--") and _waits(words[i - 1 : i], known):
            continue  # a value, which may be a secret; its option is told how to write it
        if skips:
            hint = nearest(name, known)
            refusals.append(f"unknown option {shown(name)}{hint}; see {PROGRAM} --help")
        elif flag is not None and flag.kind == "switch" and equals:
            refusals.append(
                f"{shown(word)}: {name} takes no value; allowed: {name}, {_other(name)}"
            )
        else:
            done.append(word)
    return done


def _waits(before: Sequence[str], known: dict[str, Flag]) -> bool:
    """Whether the word before is an option whose value is to come."""
    flag = known.get(before[0]) if before else None
    return flag is not None and flag.kind != "switch"


def _other(switch: str) -> str:
    """What says the opposite."""
    no = switch.startswith("--no-")
    return "--" + switch.removeprefix("--no-") if no else f"--no-{switch.lstrip('-')}"


class OptionValue(argparse.Action):
    """Puts an option's value where it belongs; one without any is noted."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        goal: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        if not values and values != "":
            assert isinstance(parser, Parser)
            one = "one argument" if self.nargs == "?" else "at least one argument"
            parser.missing.append(
                f"{option}: expected {one}; one that begins with - is written {option}=-...; "
                f"see {PROGRAM} --help"
            )
        elif self.nargs == "?":
            setattr(goal, self.dest, values)
        else:
            setattr(goal, self.dest, [*(getattr(goal, self.dest) or []), *values])


class Help(argparse.RawDescriptionHelpFormatter):
    """Lines as typer breaks them.  Values stand without brackets: a missing one is refused by our
    own check.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if not isinstance(action, OptionValue):
            return super()._format_args(action, default_metavar)
        return f"{action.metavar}{' ...' if action.nargs == '*' else ''}"


class Parser(argparse.ArgumentParser):
    """One whose complaints are ours; `missing` are those of options without a value."""

    def __init__(self, **shape: Any) -> None:
        super().__init__(**shape)
        self.missing: list[str] = []

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("argument ")
        raise ConfigError(f"{words}; see {PROGRAM} --help")


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        usage=argparse.SUPPRESS,
        description=f"Usage: {PROGRAM} [OPTIONS] [MODEL]\n\n{SUMMARY}",
        epilog=NOTES,
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: Help(prog, max_help_position=34, width=100),
    )
    arguments = parser.add_argument_group("Arguments")
    arguments.add_argument(
        "models", nargs="*", metavar="[MODEL]",
        help="A .gguf file, a folder, or a name on the Hub.  [default: stories]",
    )  # fmt: skip
    for title, rows in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in rows:
            _add(group, flag, _help(flag))
    parser.add_argument_group("Help").add_argument(
        *HELP, action="help", help="Show this message and exit."
    )
    for stance in STANCES:
        _add(parser, stance.flag, argparse.SUPPRESS)
    return parser


def _help(flag: Flag) -> str:
    """What help says of an option, with its default as every command shows it."""
    value = default(flag)
    text = f"{flag.help}  [default: {value}]" if value else flag.help
    return text.replace("%", "%%")


def _add(group: Any, flag: Flag, text: str) -> None:
    goal = flag.name.replace("-", "_")
    if flag.kind == "switch":
        group.add_argument(
            *flag.spellings, dest=goal, action="store_const", const=True, default=None, help=text
        )
        group.add_argument(
            f"--no-{flag.name}", dest=goal, action="store_const", const=False, default=None,
            help=argparse.SUPPRESS,
        )  # fmt: skip
        return
    several = flag.kind == "words"
    word = flag.metavar.split(" ")[0] or "VALUE"
    group.add_argument(
        *flag.spellings, dest=goal, default=None, help=text, action=OptionValue,
        nargs="*" if several else "?", metavar=word,
    )  # fmt: skip


def _dashed(word: str) -> str:
    """`--max_model_len=5` is `--max-model-len=5`; keys of an object stay as they are."""
    if not word.startswith("--"):
        return word
    path, equals, value = word.partition("=")
    name, dot, keys = path.partition(".")
    return name.replace("_", "-") + dot + keys + equals + value


def read_file(path: Path, refusals: list[str]) -> dict[str, Value]:
    """The options a YAML file names; those that cannot be are refused.  Raises `ConfigError`, or
    `CheckpointError` where it cannot be read.
    """
    import yaml

    text = read_bytes(path, CONFIG_BYTES)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        raise ConfigError(f"--config {path}{line}: not YAML") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--config {path}: options and their values were expected")
    known = flags()
    options: dict[str, Value] = {}
    parts: dotted.Parts = {}
    for key, value in found.items():
        name = _name(str(key), known)
        head, dot, keys = str(key).partition(".")
        try:
            if dot and _name(head, known) in known:
                _text(f"--config {path}: {key}", {"value": value})  # what JSON has no words for
                dotted.put(parts, f"--{_name(head, known)}.{keys}", value)
                continue
            if name == "config":
                raise ConfigError(f"--config {path}: a file cannot name another: {shown(key)}")
            if name not in known:
                hint = nearest(str(key), set(known) - {"config"})
                raise ConfigError(f"--config {path}: unknown option {shown(key)}{hint}")
            options[name] = _value(f"--config {path}: {key}", known[name], value)
        except ConfigError as error:
            refusals.append(str(error))
    dotted.merge(options, parts)
    return options


def _name(key: str, known: dict[str, Flag]) -> str:
    """An option's name, however the file spells it: max-model-len, max_model_len, maxModelLen."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower().replace("_", "-")
    for flag in known.values():
        if f"--{name}" in flag.also or (name in {s.lstrip("-") for s in flag.also}):
            return flag.name
    return name


def _value(where: str, flag: Flag, value: Any) -> Value:
    """A value of a file as the command line would have it."""
    if flag.kind == "switch":
        if not isinstance(value, bool):
            raise ConfigError("is not valid", where, value=value, allowed="true or false")
        return value
    if flag.kind == "words":
        many = value if isinstance(value, list) else [value]
        return [_text(where, one) for one in many]
    return _text(where, value)


def _text(where: str, value: Any) -> str:
    if isinstance(value, dict | list):
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            value = type(value).__name__
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError("is not valid", where, value=value, allowed="text or a number")
