"""The given options as `Settings`, `ServerSettings` and rows of the effective configuration.

Invariant: every option that was given is in one of them, with a row in the effective configuration,
or is refused; all refusals are reported at once.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyweight.arguments import compat
from flyweight.arguments.draft import (
    DraftArguments,
    Meaning,
    SettingRequest,
    SettingRequests,
    write_option,
)
from flyweight.arguments.options import Value, format_value, name_fields
from flyweight.cli.serve.models import (
    NamedModel,
    check_models,
    make_pulled,
    read_models_file,
    read_word,
)
from flyweight.cli.serve.options import MEANINGS, OPTIONS, SUPPORTS, apply_environment_key
from flyweight.cli.serve.words import ParsedOptions
from flyweight.config import Settings
from flyweight.errors import ConfigError, Refusals
from flyweight.server.model_options import ModelOptions, ModelSources
from flyweight.server.settings import ServerSettings

ELSEWHERE = {  # options that have no row in the effective configuration, and where they are shown
    "model": "the effective configuration and /v1/models name the model",
    "config": "its options have their rows",
    "detach": "the command prints its result",
    "headless": "a host without HTTP shows no configuration",
    "json": "the output is its effect",
    "models-file": "/v1/models lists its models",
}

OF_ONE_MODEL = ("enable-lora", "lora-modules", "revision")  # not of one that a client has pulled
OVERRIDDEN = {  # options of one model, and which of all models has no effect on it then
    "activations": "dtype",
    "backend": "device",
    "memory-limit": "gpu-memory-utilization",
}
HTTP_ALONE = ("detach", "json", "models-file", "api-key", "api-key-file", "chat-template",
              "default-chat-template-kwargs")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServeChoice:
    """What is to be served, and how; the first of the models is the default.  `sources` give a
    running server other models.
    """

    models: tuple[ModelOptions, ...]
    server: ServerSettings
    requests: SettingRequests
    sources: ModelSources
    detach: bool = False
    as_json: bool = False
    headless: bool = False

    @property
    def settings(self) -> Settings:
        """Of the default model."""
        return self.models[0].settings


def choose(parsed: ParsedOptions) -> ServeChoice:
    """Raises `ConfigError`."""
    draft = DraftArguments(parsed.options, parsed.models, refusals=list(parsed.refusals))
    apply_environment_key(draft)
    models = list_models(draft)
    draft.apply(compat.select_supports(SUPPORTS, draft.options), find_setter)
    headless = draft.options.get("headless") is True
    if headless:
        draft.refusals += list_http_options(draft.options)
    names = name_fields(OPTIONS)
    server = draft.make(lambda given: ServerSettings(**given), draft.server, names)
    if server is not None:  # the memory plan counts them
        draft.engine["max_logprobs"] = server.max_logprobs
    first = models[0] if models else NamedModel("")
    alone = {**draft.engine, **({"model": first.model} if first.model else {}), **first.own}
    engine = draft.make(lambda given: Settings.of(**given), alone, names)
    if engine is not None:
        draft.attempt(lambda: check_node(engine, headless, draft.options, len(models)))
    if engine is None or server is None or draft.refusals:
        raise Refusals(draft.refusals)
    on = parsed.options
    given = {name: write_option(name, value) for name, value in on.items()}
    common = SettingRequests(given, tuple(draft.notes))
    options = (ModelOptions(engine, (first.name,) if first.name else (), **first.more),
               *(one.make(draft.engine) for one in models[1:]))  # fmt: skip
    made = tuple(
        add_requests(one, common, server, named.given)
        for one, named in zip(options, models or [first], strict=True)
    )
    file = Path(draft.text("models-file")).expanduser() if "models-file" in on else ""
    sources = ModelSources(
        str(file), (lambda: choose(parsed).models) if file else None,
        lambda path, name: add_requests(
            make_pulled(draft.engine, path, name), common, server, {}, OF_ONE_MODEL
        ),
    )  # fmt: skip
    requests = made[0].requests or common
    return ServeChoice(
        made, server, requests, sources, on.get("detach") is True, on.get("json") is True, headless
    )


def add_requests(
    model: ModelOptions,
    common: SettingRequests,
    server: ServerSettings,
    own: Mapping[str, str],
    without: Collection[str] = (),
) -> ModelOptions:
    """The model with how its settings were requested: as those of all models, but for options
    `without` effect on it, or by its `own` options, which win.
    """
    lost = {*without, *own, *(OVERRIDDEN[name] for name in own if name in OVERRIDDEN)}
    given = {name: text for name, text in common.given.items() if name not in lost}
    given |= own
    noted = tuple(one for one in common.noted if one.feature.removeprefix("--") not in lost)
    plain = tuple(list_plain(given, model.settings, server))
    return replace(model, requests=SettingRequests(given, noted, plain))


def list_http_options(options: Mapping[str, Value]) -> list[str]:
    """Refusals of options that a host without HTTP has no use for."""
    return [
        f"--{name} has no effect with --headless: host 0 serves HTTP; leave it out"
        for name in options
        if (name in OPTIONS and OPTIONS[name].sets.startswith("server.")) or name in HTTP_ALONE
    ]


def check_node(engine: Settings, headless: bool, options: Mapping[str, Value], models: int) -> None:
    """Raises `ConfigError` where the node of several has the wrong part, or several models."""
    if headless != (engine.node_rank > 0):
        raise ConfigError(
            f"--node-rank = {engine.node_rank} with{'' if headless else 'out'} --headless: host 0 "
            "serves HTTP, and the others do not; "
            f"{'give --node-rank 1 or more' if headless else 'give --headless'}"
        )
    more = [f"--{name}" for name in ("allow-pull", "models-file") if options.get(name)]
    if engine.nnodes > 1 and (models > 1 or more):
        what = more[0] if more else f"{models} models"
        raise ConfigError(f"--nnodes = {engine.nnodes} serves one model; leave {what} out")


def list_models(draft: DraftArguments) -> list[NamedModel]:
    """The models that words and options name, each once; refusals go into the draft."""
    found: list[NamedModel] = []

    def read() -> None:
        words = [*draft.models, *([draft.text("model")] if "model" in draft.options else [])]
        found.extend(map(read_word, dict.fromkeys(words)))
        if "models-file" in draft.options:
            path = Path(draft.text("models-file")).expanduser()
            found.extend(read_models_file(path, OPTIONS))
        check_models(found)
        if len(found) > 1 and "served-model-name" in draft.options:
            raise ConfigError(
                f"--served-model-name names one model of {len(found)}; allowed: NAME=MODEL for each"
            )

    draft.attempt(read)
    return found


def find_setter(name: str, _: Value) -> Meaning | None:
    """What applies an option."""
    flag = OPTIONS.get(name)
    if flag is None or not flag.sets:
        return MEANINGS.get(name)
    return lambda draft: draft.set(flag, draft.options[name])


def list_plain(
    given: Mapping[str, str], engine: Settings, server: ServerSettings
) -> Iterator[SettingRequest]:
    """The effective values of options that set a field."""
    for name, flag in OPTIONS.items():
        owner, _, field = flag.sets.partition(".")
        if name not in given or not field:
            continue
        value = getattr(engine if owner == "engine" else server, field)
        what = flag.help[:1].lower() + flag.help[1:].rstrip(".")
        why = "requested" if value is False else f"requested: {what}"
        yield SettingRequest(f"--{name}", given[name], format_effective(field, value), why)


def format_effective(field: str, value: Any) -> str:
    """A value of a field as the effective configuration shows it."""
    if field == "port" and value == 0:
        return "any free port"
    if field in ("log_file", "uds", "ssl_certfile", "ssl_keyfile", "node_secret_file"):
        value = os.path.basename(value)  # clients see no folder
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, float):
        return f"{value:g}"
    return format_value(value if isinstance(value, bool) else str(value)) or "none"
