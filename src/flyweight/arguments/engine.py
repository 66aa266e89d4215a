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

from flyweight.arguments import compat
from flyweight.arguments.draft import DraftArguments, Meaning, SettingRequest
from flyweight.arguments.meanings import ENGINE_FLAGS, MEANINGS
from flyweight.arguments.options import Value
from flyweight.config import Settings, describe_unknown
from flyweight.errors import ConfigError, Refusals

FIELDS = {known.name for known in fields(Settings)} - {
    name.replace("-", "_") for name in compat.GPU_OPTIONS
}
SETS = {flag.key: flag for flag in ENGINE_FLAGS.values() if flag.sets}  # by vLLM's names
OBJECTS = {"quantization": (str, Mapping)}  # fields that text and objects set in the same words
SUPPORTS = compat.index_supports(compat.ENGINE, compat.OFFLINE)
SWITCHES = {name for name, one in SUPPORTS.items() if one.kind == "switch"} | {"enable-lora"}
NGRAM = ("draft_tokens", "prompt_lookup_max", "prompt_lookup_min")  # in place of a mapping
KNOWN = FIELDS | SETS.keys() | {*NGRAM} | {
    name.replace("-", "_") for name in (*MEANINGS, *SUPPORTS)
} - {"lora_modules"}  # fmt: skip
ADAPTERS = "--lora-modules NAME=FOLDER", 'adapters={"NAME": "FOLDER"}'


@dataclass(frozen=True, slots=True)
class EngineChoices:
    """`given` are the arguments as they were written, `notes` what became of those that are no
    setting.  `sampling` are defaults before the model's own, None taking one away; without
    `model_defaults` those are not used.  Without `priorities` requests are served in order.
    """

    settings: Settings
    given: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[SettingRequest, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    model_defaults: bool = True
    priorities: bool = True


def choose_engine(arguments: Mapping[str, Any]) -> EngineChoices:
    """The settings that the arguments make.  Raises `ConfigError` with all refusals at once."""
    given = {name: value for name, value in arguments.items() if value is not None}
    options: dict[str, Value] = {}
    draft = DraftArguments(options)
    draft.attempt(partial(join_ngram, given))
    draft.refusals += [describe_unknown(name, KNOWN) for name in given if name not in KNOWN]
    read: dict[str, Value] = {}
    for name in given.keys() & KNOWN:
        draft.attempt(partial(read_argument, read, name, given[name]))
    options |= {name.replace("_", "-"): read[name] for name in given if name in read}
    draft.apply(compat.select_supports(SUPPORTS, options), partial(find_setter, given))
    settings = draft.make(lambda found: Settings.of(**found), draft.engine)
    if settings is None or draft.refusals:
        raise Refusals(map(spell_in_python, draft.refusals))
    shown = {name: f"{name} = {value!r}"[:200] for name, value in given.items()}
    return EngineChoices(
        settings=settings,
        given=shown,
        notes=tuple(rename_request(note, shown) for note in draft.notes),
        sampling=draft.server.get("sampling_defaults", {}),
        model_defaults=draft.server.get("model_defaults", True),
        priorities=draft.server.get("max_priority", 1) != 0,
    )


def join_ngram(given: dict[str, Any]) -> None:
    """Replaces the keywords of prompt lookup by the `speculative_config` that they are short for:
    of as many tokens, always.
    Raises `ConfigError`.
    """
    own = {name: given.pop(name) for name in NGRAM if name in given}
    tokens = own.pop("draft_tokens", 0)
    if tokens == 0 and tokens is not False:
        if own:
            raise ConfigError(f"{next(iter(own))} has no effect without draft_tokens above 0")
        return
    if "speculative_config" in given:
        raise ConfigError("draft_tokens and speculative_config exclude each other; give one")
    given["speculative_config"] = {
        "method": "ngram", "num_speculative_tokens": tokens, "adaptive": False, **own,
    }  # fmt: skip


def find_setter(given: Mapping[str, Any], option: str, _: Value) -> Meaning | None:
    """What puts an argument into the field that it sets; text may have a meaning."""
    name = option.replace("-", "_")
    flag, value = SETS.get(name), given[name]
    if flag is not None and (str(value) in flag.none or (isinstance(value, str) and flag.none)):
        return lambda draft: draft.set(flag, str(value))
    if option in MEANINGS and isinstance(value, OBJECTS.get(name, str)):
        return MEANINGS[option]
    known = flag.sets.partition(".")[2] if flag is not None else name
    if known not in FIELDS:
        return MEANINGS.get(option)
    return lambda draft: draft.engine.update({known: value})


def spell_in_python(text: str) -> str:
    """A refusal that names options of the command line, in Python's words."""
    text = text.replace(*ADAPTERS)
    text = re.sub(r"--no-([a-z][a-z0-9-]*) is not", r"--\1 = False is not", text)
    text = re.sub(r"--([a-z][a-z0-9-]*) is not", r"--\1 = True is not", text)
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda m: m[1].replace("-", "_"), text)


def read_argument(options: dict[str, Value], name: str, value: object) -> None:
    """Puts an argument where an option of the command line would be.  Raises `ConfigError`."""
    switch = name.replace("_", "-") in SWITCHES
    if name in FIELDS and not (name in OBJECTS and isinstance(value, Mapping)):
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


def rename_request(note: SettingRequest, given: Mapping[str, str]) -> SettingRequest:
    """What became of an argument, in Python's words."""
    name = spell_in_python(note.feature)
    return SettingRequest(
        name, given.get(name, note.requested), note.effective, spell_in_python(note.reason)
    )
