"""What was asked for, as `Settings`, `ServerSettings` and entries of the ledger.

Invariant: every option that was given is in one of them, with a row in the ledger, or is refused;
all refusals are told at once.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flyweight.arguments.choosing import made, steps, tried
from flyweight.arguments.draft import DraftArguments
from flyweight.arguments.meanings import Meaning, model
from flyweight.arguments.stance import Value, said, written
from flyweight.arguments.values import converted
from flyweight.arguments.wishes import SettingRequest, SettingRequests
from flyweight.cli.serve.parse import ParsedOptions, flags
from flyweight.cli.serve.special_options import MEANINGS, key_of_environment
from flyweight.cli.serve.unsupported import STANCES
from flyweight.config import Settings
from flyweight.errors import Refusals
from flyweight.server.settings import ServerSettings

SECRET = ("api-key",)
ELSEWHERE = {  # options that have no row of their own in the ledger, and why
    "model": "`model` of the ledger, and /v1/models, tell what is served",
    "config": "its options have their rows",
    "detach": "the command prints what became of it",
    "json": "what it prints is its effect",
}


@dataclass(frozen=True, slots=True)
class ServeChoice:
    """What is to be served, and how."""

    settings: Settings
    server: ServerSettings
    wishes: SettingRequests
    detach: bool = False
    as_json: bool = False


def choose(asked: ParsedOptions) -> ServeChoice:
    """Raises `ConfigError`."""
    draft = DraftArguments(asked.options, asked.models)
    refusals = list(asked.refusals)
    key_of_environment(draft)
    for step in [model, *steps(draft, STANCES, MEANINGS, _setter, refusals)]:
        tried(partial(step, draft), refusals)
    server = made(lambda given: ServerSettings(**given), draft.server, refusals, option_names())
    if server is not None:  # the memory plan counts them
        draft.engine["max_logprobs"] = server.max_logprobs
    engine = made(lambda given: Settings.of(**given), draft.engine, refusals, option_names())
    if engine is None or server is None or refusals:
        raise Refusals(refusals)
    on = asked.options
    detach, as_json = on.get("detach") is True, on.get("json") is True
    given = {name: _given(name, value) for name, value in on.items()}
    wishes = SettingRequests(given, tuple(draft.wishes), tuple(_plain(given, on, engine, server)))
    return ServeChoice(engine, server, wishes, detach, as_json)


def _given(name: str, value: Value) -> str:
    """An option as the ledger may show it."""
    return f"--{name}" if name in SECRET else written(name, value)


def _plain(
    given: Mapping[str, str], asked: Mapping[str, Value], engine: Settings, server: ServerSettings
) -> Iterator[SettingRequest]:
    """What became of options that set a value as it is."""
    for name, flag in flags().items():
        room, _, field = flag.sets.partition(".")
        if name not in asked or not field:
            continue
        value = getattr(engine if room == "engine" else server, field)
        what = flag.help[:1].lower() + flag.help[1:].rstrip(".")
        why = "as asked" if value is False else f"as asked: {what}"
        yield SettingRequest(f"--{name}", given[name], _active(field, value), why)


def _active(field: str, value: Any) -> str:
    if field == "port" and value == 0:
        return "any that is free"
    if field in ("log_file", "uds", "ssl_certfile", "ssl_keyfile"):
        value = os.path.basename(value)  # clients are told of no folder
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:g}"
    return said(value if isinstance(value, bool) else str(value)) or "none"


def _setter(name: str, value: Value) -> Meaning | None:
    """What puts an option into a field as it is."""
    flag = flags()[name]
    if not flag.sets:
        return None

    def put(draft: DraftArguments) -> None:
        room, _, field = flag.sets.partition(".")
        goal = draft.engine if room == "engine" else draft.server
        goal[field] = converted(flag, value)

    return put


def option_names() -> dict[str, str]:
    """Fields of settings to the options that set them."""
    pairs = ((flag.sets.partition(".")[2], flag.name) for flag in flags().values())
    return {field: f"--{name}" for field, name in pairs if field}
