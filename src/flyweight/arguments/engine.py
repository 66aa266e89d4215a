"""vLLM's engine arguments as Python's keywords: `LLM(...)`, `AsyncLLM(...)` and `EngineArgs`.

Invariant: an argument that is given sets a field of `Settings`, is listed with what became of it,
or is refused; None is as good as not given.  Knows no engine.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from flyweight.arguments.choosing import made, steps, tried
from flyweight.arguments.draft import DraftArguments
from flyweight.arguments.flags import ENGINE, MODEL
from flyweight.arguments.meanings import MEANINGS, Meaning
from flyweight.arguments.stance import Value
from flyweight.arguments.stances import OFFLINE, STANCES
from flyweight.arguments.wishes import SettingRequest
from flyweight.config import Settings, unknown
from flyweight.errors import ConfigError, Refusals

FIELDS = {known.name for known in fields(Settings)}
SETS = {  # vLLM's name for a field, where it is another
    flag.name.replace("-", "_"): flag.sets.partition(".")[2]
    for flag in (*MODEL, *ENGINE)
    if flag.sets
}
FIXED = STANCES + OFFLINE
SWITCHES = {stance.name for stance in FIXED if stance.kind == "switch"} | {"enable-lora"}
KNOWN = FIELDS | SETS.keys() | {
    name.replace("-", "_") for name in (*MEANINGS, *(stance.name for stance in FIXED))
} - {"lora_modules"}  # fmt: skip
ADAPTERS = "--lora-modules NAME=FOLDER", 'adapters={"NAME": "FOLDER"}'


@dataclass(frozen=True, slots=True)
class EngineChoices:
    """`given` are the arguments as they were written, `wishes` what became of those that are no
    setting.  `sampling` are defaults before the model's own, None taking one away; without
    `model_defaults` those are not used.  Without `priorities` requests are served in order.
    """

    settings: Settings
    given: Mapping[str, str] = field(default_factory=dict)
    wishes: tuple[SettingRequest, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    model_defaults: bool = True
    priorities: bool = True


def chosen(arguments: Mapping[str, Any]) -> EngineChoices:
    """What the arguments come to.  Raises `ConfigError` for all that cannot be, at once."""
    given = {name: value for name, value in arguments.items() if value is not None}
    refusals = [unknown(name, KNOWN) for name in given if name not in KNOWN]
    options: dict[str, Value] = {}
    for name in given.keys() & KNOWN:
        tried(partial(_read, options, name, given[name]), refusals)
    draft = DraftArguments({_option(name): options[name] for name in given if name in options})
    for step in steps(draft, FIXED, MEANINGS, partial(_setter, given), refusals):
        tried(partial(step, draft), refusals)
    settings = made(lambda found: Settings.of(**found), draft.engine, refusals)
    if settings is None or refusals:
        raise Refusals(map(pythonic, refusals))
    written = {name: f"{name} = {value!r}"[:200] for name, value in given.items()}
    return EngineChoices(
        settings=settings,
        given=written,
        wishes=tuple(_wish(wish, written) for wish in draft.wishes),
        sampling=draft.server.get("sampling_defaults", {}),
        model_defaults=draft.server.get("model_defaults", True),
        priorities=draft.server.get("max_priority", 1) != 0,
    )


def _setter(given: Mapping[str, Any], option: str, _: Value) -> Meaning | None:
    """What puts an argument into a field as it is; text and -1 may have a meaning."""
    name = option.replace("-", "_")
    field, value = name if name in FIELDS else SETS.get(name), given[name]
    if field is None or (option in MEANINGS and (isinstance(value, str) or value == -1)):
        return None

    def put(draft: DraftArguments) -> None:
        draft.engine[field] = value

    return put


def pythonic(text: str) -> str:
    """A refusal that names options of the command line, in Python's words."""
    text = text.replace(*ADAPTERS)
    text = re.sub(r"--no-([a-z][a-z0-9-]*) is not", r"--\1 = False is not", text)
    text = re.sub(r"--([a-z][a-z0-9-]*) is not", r"--\1 = True is not", text)
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda m: m[1].replace("-", "_"), text)


def _option(name: str) -> str:
    return name.replace("_", "-")


def _read(options: dict[str, Value], name: str, value: object) -> None:
    """Puts an argument where an option of the command line would be.  Raises `ConfigError`."""
    switch = _option(name) in SWITCHES
    if name in FIELDS:
        options[name] = value if isinstance(value, bool) else str(value)
    elif isinstance(value, bool) != switch:
        allowed = "True, False" if switch else "text or a number"
        raise ConfigError("is not valid", name, value=value, allowed=allowed)
    elif isinstance(value, Mapping):
        try:
            options[name] = json.dumps(dict(value))
        except (TypeError, ValueError):
            raise ConfigError("is not valid: no JSON", name, value=value) from None
    else:
        options[name] = value if isinstance(value, bool) else str(value)


def _wish(wish: SettingRequest, given: Mapping[str, str]) -> SettingRequest:
    """What became of an argument, in Python's words."""
    name = pythonic(wish.feature)
    return SettingRequest(
        name, given.get(name, wish.requested), wish.effective, pythonic(wish.reason)
    )
