"""What was asked for, as `Settings`, `ServerSettings` and entries of the ledger.

Invariant: every option that was given is in one of them, with a row in the ledger, or is refused;
all refusals are told at once.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.cli.serve.flags import Flag
from flyweight.cli.serve.meanings import MEANINGS, Draft, Meaning, key_of_environment, model
from flyweight.cli.serve.stance import Value, said, written
from flyweight.cli.serve.stances import STANCES
from flyweight.cli.serve.values import converted
from flyweight.cli.serve.words import Asked, flags
from flyweight.config import Settings
from flyweight.errors import ConfigError, Refusals
from flyweight.server.ledger.wishes import Wish, Wishes
from flyweight.server.settings import ServerSettings

SECRET = ("api-key",)
ELSEWHERE = {  # options that have no row of their own in the ledger, and why
    "model": "`model` of the ledger, and /v1/models, tell what is served",
    "config": "its options have their rows",
    "detach": "the command prints what became of it",
    "json": "what it prints is its effect",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be served, and how.  `format` is what the model's files must be."""

    settings: Settings
    server: ServerSettings
    wishes: Wishes
    format: str = ""
    detach: bool = False
    as_json: bool = False


def choose(asked: Asked) -> Choice:
    """Raises `ConfigError`."""
    draft = Draft(asked)
    refusals = list(asked.refusals)
    key_of_environment(draft)
    for step in _steps(draft, refusals):
        _tried(lambda step=step: step(draft), refusals)  # type: ignore[misc]
    server = _made(lambda given: ServerSettings(**given), draft.server, refusals)
    if server is not None:  # the memory plan counts them
        draft.engine["max_logprobs"] = server.logprobs
    engine = _made(lambda given: Settings.of(**given), draft.engine, refusals)
    if engine is None or server is None or refusals:
        raise Refusals(refusals)
    on = asked.options
    detach, as_json = on.get("detach") is True, on.get("json") is True
    given = {name: _given(name, value) for name, value in on.items()}
    wishes = Wishes(given, tuple(draft.wishes), tuple(_plain(given, on, engine, server)))
    return Choice(engine, server, wishes, draft.format, detach, as_json)


def _steps(draft: Draft, refusals: list[str]) -> list[Meaning]:
    """What is to be done for each option; refuses those of `STANCES` that cannot be honoured."""
    steps: list[Meaning] = [model]
    stances = {stance.name: stance for stance in STANCES}
    known = flags()
    for name, value in draft.asked.options.items():
        stance = stances.get(name)
        if stance is not None:
            refusal = stance.refusal(value)
            if refusal is None or (name == "tokenizer" and said(value) in _models(draft.asked)):
                draft.wish(name, stance.active, stance.why)
            else:
                refusals.append(refusal)
        elif known[name].sets:
            steps.append(_setter(known[name], value))
        elif name in MEANINGS:
            steps.append(MEANINGS[name])
    return steps


def _models(asked: Asked) -> list[str]:
    """What is to be served, in its own words: its vocabulary may be asked for by the same."""
    model = asked.options.get("model")
    return [*asked.models, model] if isinstance(model, str) else asked.models


def _given(name: str, value: Value) -> str:
    """An option as the ledger may show it."""
    return f"--{name}" if name in SECRET else written(name, value)


def _plain(
    given: Mapping[str, str], asked: Mapping[str, Value], engine: Settings, server: ServerSettings
) -> Iterator[Wish]:
    """What became of options that set a value as it is."""
    for name, flag in flags().items():
        room, _, field = flag.sets.partition(".")
        if name not in asked or not field:
            continue
        value = getattr(engine if room == "engine" else server, field)
        what = flag.help[:1].lower() + flag.help[1:].rstrip(".")
        why = "as asked" if value is False else f"as asked: {what}"
        yield Wish(f"--{name}", given[name], _active(field, value), why)


def _active(field: str, value: Any) -> str:
    if field == "port" and value == 0:
        return "any that is free"
    if field == "log_file":
        value = os.path.basename(value)  # clients are told of no folder
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:g}"
    return said(value if isinstance(value, bool) else str(value)) or "none"


def _setter(flag: Flag, value: Value) -> Meaning:
    def put(draft: Draft) -> None:
        room, _, name = flag.sets.partition(".")
        goal = draft.engine if room == "engine" else draft.server
        goal[name] = converted(flag, value)

    return put


def _tried(work: Callable[[], Any], refusals: list[str]) -> Any:
    try:
        return work()
    except ConfigError as error:
        refusals.append(spoken(str(error)))
        return None


def _made(make: Callable[[dict[str, Any]], Any], given: dict[str, Any], refusals: list[str]) -> Any:
    """Settings out of what was given.  What is refused is left out, so that the next that cannot be
    is seen too.
    """
    left = dict(given)
    while True:
        try:
            return make(left)
        except ConfigError as error:
            refusals.append(spoken(str(error)))
            if left.pop(str(error).partition(" = ")[0], None) is None:
                return None


def spoken(message: str) -> str:
    """A refusal that begins with a setting's name, under its option's."""
    name, equals, rest = message.partition(" = ")
    for flag in flags().values():
        if equals and flag.sets.partition(".")[2] == name:
            return f"--{flag.name} = {rest}"
    return message
