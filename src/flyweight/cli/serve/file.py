"""Options that come in another form: lines of a YAML file, and keys of options that are JSON
objects, as in `--speculative-config.method ngram`.

Invariant: a key is a value or an object, never both; keys that are given by themselves are merged
into the option's object and win over it.  What options and keys mean is not known here.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyweight.arguments.objects import parse_object_option
from flyweight.arguments.options import Flag, Value
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.validation.untrusted import read_bytes, shown

CONFIG_BYTES = 1 << 20
DEEPEST = 8  # keys of a path
PYTHON = {"True": "true", "False": "false", "None": "null"}  # as text they would be truthy
Parts = dict[str, dict[str, Any]]


def read_config(
    file: Value | None, known: Mapping[str, Flag], refusals: list[str]
) -> dict[str, Value]:
    """The options that a YAML file names; none without a file."""
    if not isinstance(file, str):
        return {}
    try:
        return read_options(Path(file).expanduser(), known, refusals)
    except (ConfigError, CheckpointError) as error:
        refusals.append(str(error))
        return {}


def read_options(path: Path, known: Mapping[str, Flag], refusals: list[str]) -> dict[str, Value]:
    """The same of a file that must be there.  Raises `ConfigError`, or `CheckpointError` where it
    cannot be read.
    """
    options: dict[str, Value] = {}
    parts: Parts = {}
    for key, value in load_yaml(path).items():
        name, where = find_name(key, known), f"--config {path}: {key}"
        head, dot, keys = key.partition(".")
        try:
            if dot and find_name(head, known) in known:
                read_text(where, {"value": value})  # a value that JSON does not have
                put_part(parts, f"--{find_name(head, known)}.{keys}", value, known)
                continue
            if name == "config":
                raise ConfigError(f"--config {path}: a file cannot name another: {shown(key)}")
            if name not in known:
                hint = nearest(key, set(known) - {"config"})
                raise ConfigError(f"--config {path}: unknown option {shown(key)}{hint}")
            options[name] = read_value(where, known[name], value)
        except ConfigError as error:
            refusals.append(str(error))
    merge_parts(options, parts)
    return options


def load_yaml(path: Path, option: str = "--config") -> dict[str, Any]:
    """The keys and values of the YAML file that an option names."""
    import yaml

    text = read_bytes(path, CONFIG_BYTES)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        raise ConfigError(f"{option} {path}{line}: not YAML") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{option} {path}: options and their values were expected")
    return {str(key): value for key, value in found.items()}


def find_name(key: str, known: Mapping[str, Flag]) -> str:
    """An option's name, however the file spells it: max-model-len, max_model_len, maxModelLen."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", key).lower().replace("_", "-")
    for flag in known.values():
        if name in {spelling.lstrip("-") for spelling in flag.also}:
            return flag.name
    return name


def read_value(where: str, flag: Flag, value: Any) -> Value:
    """A value of a file as the command line would have it."""
    if flag.kind == "switch":
        if not isinstance(value, bool):
            raise ConfigError("is not valid", where, value=value, allowed="true or false")
        return value
    if flag.kind == "words":
        many = value if isinstance(value, list) else [value]
        return [read_text(where, one) for one in many]
    return read_text(where, value)


def read_text(where: str, value: Any) -> str:
    """A value of a file as text."""
    if isinstance(value, dict | list):
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            value = type(value).__name__
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError("is not valid", where, value=value, allowed="text or a number")


def put_part(parts: Parts, path: str, value: Any, known: Mapping[str, Flag]) -> None:
    """Sets `--option.key.key` in the objects so far.  Raises `ConfigError`."""
    name, *keys = path.removeprefix("--").split(".")
    if known[name].kind != "object":
        objects = [one.name for one in known.values() if one.kind == "object"]
        raise ConfigError(
            f"--{shown(path.removeprefix('--'))[1:-1]}: --{name} takes no object; allowed: "
            f"--{name} by itself{nearest(name, objects)}"
        )
    if not all(keys) or len(keys) > DEEPEST:
        raise ConfigError(
            f"{shown(path)} is not valid; allowed: --{name}.KEY, of up to {DEEPEST} keys with a "
            "dot between them"
        )
    inner = parts.setdefault(name, {})
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{shown(path)}: {key} is a value already; give one of them")
    if isinstance(inner.get(keys[-1]), dict) != isinstance(value, dict) and keys[-1] in inner:
        raise ConfigError(f"{shown(path)}: {keys[-1]} is an object already; give one of them")
    inner[keys[-1]] = value


def read_part(path: str, text: str) -> Any:
    """JSON, or else text, as vLLM reads it."""
    if text in PYTHON:
        raise ConfigError(
            "would be text", path, value=text, hint=f"nearest valid: {PYTHON[text]}, as JSON has it"
        )
    try:
        return parse_object_option(path, f'{{"value": {text}}}')["value"]
    except (ConfigError, KeyError):
        return text


def merge_parts(options: dict[str, Value], parts: Parts) -> None:
    """Merges keys into the options' objects; an option that is no object stays unchanged, and is
    refused for that.
    """
    for name, part in parts.items():
        plain = options.get(name, "{}")
        try:
            whole = parse_object_option(f"--{name}", plain if isinstance(plain, str) else "")
        except ConfigError:
            continue
        options[name] = json.dumps(merge_objects(whole, part))


def merge_objects(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """An object with the keys of another, which win."""
    found = dict(whole)
    for key, value in part.items():
        mine = found.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            value = merge_objects(mine, value)
        found[key] = value
    return found
