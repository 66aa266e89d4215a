"""From a model's files to a `ServedModel`: names, tokenizer, chat template, defaults.

Invariant: nothing of a model is computed here; a name that clients are shown never contains a
file's path.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from flyweight.arguments.draft import SettingRequests
from flyweight.config import parse_bytes, read_fault
from flyweight.describe import (
    DEFAULT_MODEL,
    INSIDE,
    ModelDescription,
    check_quality,
    describe,
)
from flyweight.errors import ConfigError, RequestError
from flyweight.plan.machine import read_machine
from flyweight.plan.memory import format_size
from flyweight.requests.preparing import RequestChecks, RequestPreparer, read_generation_options
from flyweight.server import pipe
from flyweight.server.chat_format import check_template_defaults
from flyweight.server.engine_client import EngineClient
from flyweight.server.engine_host import Host
from flyweight.server.model_entry import ModelEntry
from flyweight.server.model_options import MOST_MODELS, ModelOptions
from flyweight.server.observability.effective_config import EffectiveConfiguration
from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.model_summary import summarize_model
from flyweight.server.overload_steps import check_overload_models, parse_overload_steps
from flyweight.server.served_model import ServedModel
from flyweight.server.settings import ServerSettings
from flyweight.text.chat import PLAIN, TemplateFault, try_out
from flyweight.text.codec import DEFAULT
from flyweight.text.template_reads import list_variables
from flyweight.text.tokenizer import Tokenizer
from flyweight.validation.untrusted import shown

SHARE = re.compile(r"[0-9]?\.[0-9]{1,9}|[01]")  # of the memory limit


class ServedName(NamedTuple):
    """A model's name; `also` are names that requests may use and that are never shown."""

    name: str
    also: frozenset[str] = frozenset()


def name_model(model: str | os.PathLike[str] | None) -> ServedName:
    """A file or folder is called by its own name, and requests may also use its path; a model of
    the Hub has its name there.
    """
    given = str(model or DEFAULT_MODEL)
    path = os.path.expanduser(given)
    if given in INSIDE or not os.path.exists(path):
        return ServedName(given)
    whole = os.path.abspath(path)
    return ServedName(os.path.basename(whole) or "model", frozenset({given, path, whole}))


def choose_names(
    model: str | os.PathLike[str] | None, given: Sequence[str], adapters: Collection[str]
) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names that clients are shown, and other names that requests may use.  Raises
    `ConfigError` if an adapter has one of these names.
    """
    own = name_model(model)
    names, also = (tuple(given), frozenset[str]()) if given else ((own.name,), own.also)
    taken = [name for name in adapters if name in names or name in also]
    if taken:
        raise ConfigError(
            f"--lora-modules: {shown(taken[0])} is the model's own name; allowed: another name for "
            "the adapter, or another --served-model-name"
        )
    return names, also


def set_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """The tokenizer with the operator's chat template, if there is one; without any template,
    messages are plain text.
    """
    if not template and tokenizer.marks.templates:
        return tokenizer
    marks = replace(tokenizer.marks, templates={DEFAULT: template or PLAIN})
    return replace(tokenizer, marks=marks)


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """What an entry is made of: its options, names and engine."""

    options: ModelOptions
    names: tuple[str, ...]
    also: frozenset[str]
    setup: pipe.EngineSetup

    def serves(self, name: str) -> bool:
        return name in self.names or name in self.also or name in self.options.settings.adapters

    def make(self, server: ServerSettings, host: Host) -> ModelEntry:
        client = EngineClient(host, self.setup, patience=server.engine_timeout)
        entry = ModelEntry(self.options, client, self.names, self.also, server.parents)
        client.on_step = entry.observe_step
        return entry


def plan_entries(models: Sequence[ModelOptions], server: ServerSettings) -> list[EntryPlan]:
    """An entry for each model.  Raises `ConfigError` where two have one name, their memory is more
    than there is, or an overload step names none of them.
    """
    if len(models) > MOST_MODELS:
        raise ConfigError(f"{len(models)} models; allowed: up to {MOST_MODELS}")
    total = read_machine().total
    limit = parse_bytes(str(models[0].settings.memory_limit), total)
    plans = list[EntryPlan]()
    for one in models:
        given = one.names or server.served_model_name
        names, also = choose_names(one.settings.model, given, one.settings.adapters)
        taken = [name for plan in plans for name in (*names, *one.settings.adapters)
                 if plan.serves(name)]  # fmt: skip
        if taken:
            raise ConfigError(
                f"two models are called {shown(taken[0])}; allowed: one; name them: "
                f"{taken[0]}-2={one.settings.model}"
            )
        setup = make_setup(one, server, limit, len(models), names[0])
        plans.append(EntryPlan(one, names, also, setup))
    steps = parse_overload_steps(server.overload_steps, server.overload_percent)
    check_overload_models(steps, [name for plan in plans for name in plan.names])
    check_memory({one.names[0]: one.setup.room for one in plans if one.setup.fixed}, limit)
    return plans


def check_memory(shares: Mapping[str, int], limit: int) -> None:
    """Raises `ConfigError` where models' shares are more than there is."""
    total = sum(shares.values())
    if total > limit:  # tenths of a per cent, rounded down
        fitting = [f"{name} {1000 * size // total / 10:g}%" for name, size in shares.items()]
        raise ConfigError(
            f"the models' memory is {format_size(total)} together, more than the "
            f"{format_size(limit)} of memory_limit; nearest valid: {', '.join(fitting)}"
        )


def parse_memory(name: str, text: str, limit: int) -> int:
    """What a model may hold: a size, or a share of the limit such as 25% or 0.25.  Raises
    `ConfigError`.
    """
    path, share = f"memory of {name}", Fraction(text) if SHARE.fullmatch(text) else None
    found = parse_bytes(text, limit, path) if share is None else int(limit * share)
    if not found or (share is not None and share > 1):
        raise ConfigError(
            "is out of range", path, value=text, allowed="a share above 0, up to 1, or a size",
            hint=f"nearest valid: {1 if found else 0.01}",
        )  # fmt: skip
    return found


def make_setup(
    model: ModelOptions, server: ServerSettings, limit: int, models: int, name: str
) -> pipe.EngineSetup:
    """The message that builds a model's engine, one of so many under one memory limit."""
    settings = model.settings
    given = pipe.to_portable({slot: getattr(settings, slot) for slot in settings.__slots__})
    room = parse_memory(name, model.memory, limit) if model.memory else limit // models
    return pipe.EngineSetup(
        given,
        server.target_step_time,
        server.max_prefill_delay,
        read_fault(),
        room if models > 1 or model.memory else 0,
        bool(model.memory),
        model.weight,
        server.token_cache_bytes,
    )


@dataclass(frozen=True, slots=True)
class ModelReader:
    """Reads models for one server; `requests` are the settings that the user gave, for models
    without their own.
    """

    server: ServerSettings
    requests: SettingRequests
    log: ServerLog

    def describe(self, entry: ModelEntry) -> ModelDescription:
        """A model without its tensors; checks the operator's template.  Raises `ConfigError`."""
        settings = entry.options.settings
        assert entry.path is not None, "it was found"
        found = describe(entry.path, settings.quantization)
        check_quality(settings, found.quality)
        given = self.server.chat_template
        try:
            if given:
                try_out(given, found.tokenizer, self.server.templates)
        except RequestError as error:
            found.checkpoint.close()
            line = f", line {error.line}" if isinstance(error, TemplateFault) else ""
            raise ConfigError(f"{line}{error.problem}", "--chat-template") from None
        # what they read is remembered, and seen while the engine loads
        templates = set_template(found.tokenizer, given).marks.templates.values()
        reads = [list_variables(one) for one in templates]
        check_template_defaults(self.server.template_defaults, reads)
        return found

    def make_model(self, entry: ModelEntry, found: ModelDescription) -> ServedModel:
        """The model, once its engine is loaded."""
        facts, settings = entry.client.facts, entry.options.settings
        checks = RequestChecks(
            facts["vocab"], facts["max_model_len"], facts["scored"], found.stop_ids,
            tuple(facts["adapters"]), settings.max_logprobs,
        )  # fmt: skip
        tokenizer = set_template(found.tokenizer, self.server.chat_template)
        parser = self.server.reasoning_parser
        preparer = RequestPreparer(tokenizer, checks, settings.seed, reasoning=parser)
        theirs = found.checkpoint.generation if self.server.model_defaults else {}
        defaults = {**read_generation_options(theirs), **self.server.sampling_defaults}
        defaults = {name: value for name, value in defaults.items() if value is not None}
        requests = entry.options.requests or self.requests
        effective = EffectiveConfiguration(
            settings, self.server, requests, facts, summarize_model(found)
        )
        if tokenizer.chat_template == PLAIN:
            self.log.event("chat_template", model="none", used="messages as plain text")
        model = ServedModel(
            self.server, entry.client, preparer, defaults, entry.own, entry.also,
            effective, self.log, entry.counts, entry.latency,
        )  # fmt: skip
        effective.add_chat_format(model.chat_format)
        entry.counts = model.counts
        return model
