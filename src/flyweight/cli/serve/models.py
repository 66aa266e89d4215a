"""Several models behind one server: the words NAME=MODEL, and the file of --models-file.

Invariant: a model has its own name, or the one of its file; a setting of one model wins over the
command line's.  Opens no model.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flyweight.arguments.draft import write_option
from flyweight.arguments.options import Flag, convert
from flyweight.cli.serve.file import find_name, load_yaml, read_value
from flyweight.config import Settings
from flyweight.errors import ConfigError, nearest
from flyweight.server.model_options import FOREVER, MOST_MODELS, ModelOptions
from flyweight.validation.durations import parse_seconds
from flyweight.validation.untrusted import shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
OWN = ("model", "weight", "memory", "keep-alive", "preload")
MOST_WEIGHT = 10**6


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model and what it is called; `own` are its settings, `more` fields of `ModelOptions`, and
    `given` its options as they were written, by name.
    """

    model: str
    name: str = ""
    own: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)

    def make(self, common: Mapping[str, Any]) -> ModelOptions:
        """With the settings that are common to all.  Raises `ConfigError`."""
        settings = Settings.of(**{**common, **self.own, "model": self.model})
        return ModelOptions(settings, (self.name,) if self.name else (), **self.more)


def make_pulled(common: Mapping[str, Any], path: str, name: str) -> ModelOptions:
    """The options of a model that a client has pulled: the settings that are common to all, but for
    adapters and a revision, which are of one model.
    """
    shared = {key: value for key, value in common.items() if key not in ("adapters", "revision")}
    return NamedModel(path, name).make(shared)


def read_word(word: str) -> NamedModel:
    """`NAME=MODEL`, or a model; a file whose name has an = in it is a model."""
    name, equals, model = word.partition("=")
    if not equals or os.path.exists(os.path.expanduser(word)) or not NAME.fullmatch(name):
        return NamedModel(word)
    if not model:
        raise ConfigError(f"{shown(word)}: no model; allowed: NAME=MODEL, as in small={'stories'}")
    return NamedModel(model, name)


def read_models_file(path: Path, known: Mapping[str, Flag]) -> list[NamedModel]:
    """The models of a YAML file: names, and for each a model or an object.  Raises `ConfigError`,
    or `CheckpointError` where it cannot be read.
    """
    found = load_yaml(path, "--models-file").get("models")
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"--models-file {path}: no models; allowed: models: {{NAME: MODEL, ...}}")
    return [read_entry(f"--models-file {path}: {name}", str(name), given, known)
            for name, given in found.items()]  # fmt: skip


def read_entry(where: str, name: str, given: Any, known: Mapping[str, Flag]) -> NamedModel:
    if isinstance(given, str):
        given = {"model": given}
    if not NAME.fullmatch(name):
        raise ConfigError(f"{where}: not a name; allowed: letters, digits and ._:/-")
    if not isinstance(given, dict) or not isinstance(given.get("model"), str):
        raise ConfigError(f"{where}: no model; allowed: a file, a folder or a name on the Hub")
    own: dict[str, Any] = {}
    more: dict[str, Any] = {}
    written: dict[str, str] = {}
    settable = {flag.name: flag for flag in known.values() if flag.sets.startswith("engine.")}
    for key, value in given.items():
        option = find_name(str(key), known)
        if option in OWN:
            more.update(read_own(f"{where}: {key}", option, value))
        elif option in settable:
            flag = settable[option]
            found = read_value(where, flag, value)
            own[flag.sets.partition(".")[2]] = convert(flag, found)
            written[option] = write_option(option, found)
        else:
            hint = nearest(str(key), {*OWN, *settable})
            raise ConfigError(f"{where}: unknown key {shown(str(key))}{hint}")
    return NamedModel(given["model"], name, own, more, written)


def read_own(where: str, key: str, value: Any) -> dict[str, Any]:
    """A field of `ModelOptions`."""
    if key == "model":
        return {}
    if key == "preload":
        if not isinstance(value, bool):
            raise ConfigError("is not valid", where, value=value, allowed="true or false")
        return {"preload": value}
    if key == "weight":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= MOST_WEIGHT:
            raise ConfigError(
                "is out of range", where, value=value, allowed=f"above 0 to {MOST_WEIGHT}"
            )
        return {"weight": float(value)}
    if key == "keep-alive":
        if value in (-1, "forever"):
            return {"keep_alive": FOREVER}
        return {"keep_alive": parse_seconds(where, str(value))}
    return {"memory": str(value)}


def check_models(models: Sequence[NamedModel]) -> None:
    """Raises `ConfigError` for too many, or two with one name."""
    if len(models) > MOST_MODELS:
        raise ConfigError(f"{len(models)} models; allowed: up to {MOST_MODELS}")
    names = [one.name for one in models if one.name]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ConfigError(f"two models are called {shown(twice[0])}; allowed: a name for each")
