"""Options that several commands share: the engine's, made from the declared settings, and others.

Invariant: an option of the engine has the name, help, kind and default of its field of `Settings`;
a command may have another default.  Ranges are checked by `Settings`.
"""

import inspect
from dataclasses import fields, replace
from types import NoneType
from typing import Annotated, Any

import typer

from flyweight.arguments.draft import DraftArguments
from flyweight.arguments.meanings import ENGINE_FLAGS, apply_device, apply_quantization
from flyweight.arguments.options import Flag, convert, make_flags
from flyweight.cli.parameters import OptionTable, make_row
from flyweight.config import Settings
from flyweight.validation.setting import find_types

FIELDS = {known.name: known for known in fields(Settings)}
FLAGS = {
    name: flag
    for flag in make_flags(Settings, "engine")
    if (name := flag.sets.partition(".")[2] or flag.key) in FIELDS
}
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A .gguf file, a folder, or org/name.")]
Adapter = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="LoRA adapter to answer with, in PEFT's format."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def select_settings(*names: str, **defaults: Any) -> OptionTable:
    """Options of settings; `defaults` are a command's own."""
    return OptionTable(make_setting_row(FLAGS[name], name, **defaults) for name in names)


def make_setting_row(flag: Flag, name: str, **defaults: Any) -> inspect.Parameter:
    """The option of a setting, named as its field."""
    kind, *others = find_types(FIELDS[name])
    default = defaults.get(name, FIELDS[name].default)
    if name in defaults:
        flag = replace(flag, default=str(defaults[name]))
    spelling = f"--{name.replace('_', '-')}"
    text = f"{flag.help}  [default: {flag.default}]" if flag.default else flag.help
    shown: dict[str, Any] = {"help": text, "show_default": False}
    if kind is bool:
        spelling += f"/--no-{name.replace('_', '-')}" if default else ""
    else:
        shown |= {"metavar": flag.metavar}
    if flag.kind in ("count", "size"):
        shown |= {"parser": lambda text: convert(flag, str(text))}
    kind = kind | None if NoneType in others else kind
    return make_row(name, kind, default, spelling, *flag.also, **shown)


def make_option(name: str) -> Any:
    """The option of a setting, to annotate a field of a command's own options with."""
    return make_setting_row(FLAGS[name], name).annotation.__metadata__[0]


def read_files_kind(quantization: str | None) -> dict[str, Any]:
    """The settings that --quantization makes, as in `flyweight serve`.  Raises `ConfigError`."""
    if quantization is None:
        return {}
    draft = DraftArguments({"quantization": quantization})
    apply_quantization(draft)
    return draft.engine


def read_device(device: str) -> dict[str, Any]:
    """The settings that --device makes, as in `flyweight serve`.  Raises `ConfigError`."""
    draft = DraftArguments({"device": device})
    apply_device(draft)
    return draft.engine


Device = Annotated[
    dict[str, Any],
    OptionTable(
        [
            make_row(
                "device",
                str,
                "auto",
                "--device",
                metavar="DEVICE",
                help=f"{ENGINE_FLAGS['device'].help}  [default: cpu]",
                show_default=False,
            )
        ],
        read_device,
    ),
]
Source = Annotated[dict[str, Any], select_settings("revision", "offline")]
Quantization = Annotated[
    dict[str, Any],
    OptionTable(
        [
            make_row(
                "quantization",
                str | None,
                None,
                "-q",
                "--quantization",
                metavar="METHOD",
                help=f"{FLAGS['quantization'].help}  [default: any]",
                show_default=False,
            )
        ],
        read_files_kind,
    ),
]
