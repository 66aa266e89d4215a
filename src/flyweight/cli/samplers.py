"""Sampling options of `flyweight run` and of `/set`, made from the declarations of
`SamplingParams`.

Invariant: an option that declares `cli` is here under its name, with its range and its default.
Knows no option by name.
"""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from flyweight.cli.parameters import OptionTable, Values, make_row
from flyweight.params.options import (
    RealOption,
    SamplingOption,
    SwitchOption,
    TextsOption,
    format_words,
)
from flyweight.types import OPTIONS, SamplingParams

SETTABLE: Mapping[str, SamplingOption] = {n: one for n, one in OPTIONS.items() if one.cli}
LISTS = frozenset(name for name, one in SETTABLE.items() if isinstance(one, TextsOption))
DEFAULTS = {f.name: f.default for f in fields(SamplingParams) if f.default is not MISSING}
# of `run`, where the checkpoint has none: neutral sampling wanders off in small models
RUN_DEFAULTS = {n: one.run_default for n, one in SETTABLE.items() if one.run_default is not None}


def select_sampling(*names: str, **defaults: Any) -> OptionTable:
    """Some options, for another command, whose `defaults` these are; the others have none."""
    return OptionTable(
        make_sampling_row(
            name, SETTABLE[name], default, "" if default is None else format_words(default)
        )
        for name, default in ((name, defaults.get(name)) for name in names)
    )


def make_sampling_row(
    name: str, option: SamplingOption, value: Any = None, default: str = ""
) -> inspect.Parameter:
    """The option of a command for a sampling option; `default` is its default in words."""
    if isinstance(option, SwitchOption):
        return make_row(name, bool, False, f"--{name.replace('_', '-')}", help=option.doc)
    kind: Any = float if isinstance(option, RealOption) else int
    text = f"{option.doc} Allowed: {option.range}."
    if isinstance(option, TextsOption):
        kind, text = list[str], f"{option.doc} Allowed: {option.range}, each after its own option."
    return make_row(
        name, kind | None, value, *(option.flags or (f"--{name.replace('_', '-')}",)),
        metavar=option.cli, show_default=False,
        help=f"{text}  [default: {default}]" if default else text,
    )  # fmt: skip


def describe_default(name: str, option: SamplingOption) -> str:
    """What `run` uses without the option, in words; empty for none."""
    if option.cli_default:
        return option.cli_default
    value = RUN_DEFAULTS.get(name, DEFAULTS[name])
    if value in (None, ()):
        return ""
    return (
        f"the model's, or {format_words(value)}"
        if option.generation_config
        else format_words(value)
    )


def drop_unset(values: Values) -> Values:
    """The options that were given; a list that was not is none, or empty."""
    return {name: value for name, value in values.items() if value is not None and value != []}


SAMPLING = OptionTable(
    make_sampling_row(name, option, default=describe_default(name, option))
    for name, option in SETTABLE.items()
)
