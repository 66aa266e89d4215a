"""Parts of options that are JSON objects, said one by one: `--speculative-config.method ngram`.

Invariant: what is said so is merged into the option's object and wins over it; a key is a value or
an object, never both.  What keys mean is not known here.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from flyweight.arguments.objects import parsed
from flyweight.arguments.stance import Value
from flyweight.arguments.values import NEGATIVE
from flyweight.errors import ConfigError, nearest
from flyweight.validation.untrusted import shown

OBJECTS = (  # options whose value is one, those that are refused too
    "speculative-config", "override-generation-config", "default-chat-template-kwargs",
    "structured-outputs-config", "compilation-config", "kv-transfer-config", "kv-events-config",
    "additional-config", "hf-overrides", "rope-scaling", "limit-mm-per-prompt",
    "model-loader-extra-config", "mm-processor-kwargs", "pooler-config",
)  # fmt: skip
DEEPEST = 8  # keys of a path
PYTHON = {"True": "true", "False": "false", "None": "null"}  # as text they would be truthy
Parts = dict[str, dict[str, Any]]


def gathered(
    words: Sequence[str], known: Collection[str], refusals: list[str]
) -> tuple[list[str], Parts]:
    """The other words, and what was said in parts, by option."""
    rest: list[str] = []
    parts: Parts = {}
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        path, equals, value = word.partition("=")
        name = path.partition(".")[0].removeprefix("--")
        if word == "--":
            return [*rest, word, *reversed(waiting)], parts
        if not word.startswith("--") or "." not in path or name not in known:
            rest.append(word)
            continue
        if not equals and not _is_value(waiting):
            refusals.append(f"{path}: expected one argument")
            continue
        text = value if equals else waiting.pop()
        try:
            put(parts, path, _read(path, text))
        except ConfigError as error:
            refusals.append(str(error))
    return rest, parts


def put(parts: Parts, path: str, value: Any) -> None:
    """Sets `--option.key.key` in what was said so far.  Raises `ConfigError`."""
    name, *keys = path.removeprefix("--").split(".")
    if name not in OBJECTS:
        raise ConfigError(
            f"--{shown(path.removeprefix('--'))[1:-1]}: --{name} takes no object; allowed: "
            f"--{name} by itself{nearest(name, OBJECTS)}"
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


def merge(options: dict[str, Value], parts: Parts) -> None:
    """Puts what was said in parts into the options' objects; one that is no object stays as it is,
    and is refused for that.
    """
    for name, part in parts.items():
        plain = options.get(name, "{}")
        try:
            whole = parsed(f"--{name}", plain if isinstance(plain, str) else "")
        except ConfigError:
            continue
        options[name] = json.dumps(_over(whole, part))


def _over(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """An object, and over it another."""
    found = dict(whole)
    for key, value in part.items():
        mine = found.get(key)
        both = isinstance(mine, dict) and isinstance(value, dict)
        found[key] = _over(mine, value) if both else value  # type: ignore[arg-type]
    return found


def _is_value(waiting: Sequence[str]) -> bool:
    """Whether the next word is no option."""
    following = waiting[-1] if waiting else "--"
    return not following.startswith("-") or NEGATIVE.fullmatch(following) is not None


def _read(path: str, text: str) -> Any:
    """JSON, or else text, as vLLM reads it."""
    if text in PYTHON:
        raise ConfigError(
            "would be text", path, value=text, hint=f"nearest valid: {PYTHON[text]}, as JSON has it"
        )
    try:
        return parsed(path, f'{{"value": {text}}}')["value"]
    except (ConfigError, KeyError):
        return text
