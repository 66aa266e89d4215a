"""Options of `flyweight serve`: the engine's, those of the declared server settings, and options
that are more than a field, with what each of those means.

Invariant: an option has vLLM's name where vLLM has one, and is in one group of --help; options of
vLLM that choose nothing here are in none.
"""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flyweight.arguments import compat
from flyweight.arguments.draft import DraftArguments, Meaning, SettingRequest
from flyweight.arguments.meanings import ENGINE_FLAGS
from flyweight.arguments.meanings import MEANINGS as ENGINE_MEANINGS
from flyweight.arguments.objects import format_options, parse_object_option
from flyweight.arguments.options import Flag, make_flags
from flyweight.config import read_server_key
from flyweight.errors import ConfigError
from flyweight.server.settings import ServerSettings
from flyweight.server.transport.keys import read_key_file
from flyweight.validation.untrusted import read_text, shown

FLAGS = (  # options that no field declares
    Flag("disable-log-requests", "switch", "Log no line for a request.", group="Log"),
    Flag(
        "disable-uvicorn-access-log", "switch", "The same as --disable-log-requests.", group="Log"
    ),
    Flag(
        "uvicorn-log-level", "text", "Log requests at info; not at warning, error and critical.",
        metavar="LEVEL", default="info", group="Log",
    ),
    Flag(
        "config", "text", "YAML file of these options; the command line wins.", metavar="FILE",
        group="Process",
    ),
    Flag(
        "models-file", "text", "YAML file of models: names, and for each a model and its settings.",
        metavar="FILE", group="Model",
    ),
    Flag(
        "detach", "switch", "Return when the server is ready; `flyweight stop` ends it.",
        group="Process",
    ),
    Flag(
        "headless", "switch", "Compute for host 0 and serve no HTTP; see --nnodes.",
        group="Process",
    ),
    Flag("json", "switch", "Print the banner as one JSON object on stdout.", group="Process"),
)  # fmt: skip
TABLE = (*ENGINE_FLAGS.values(), *make_flags(ServerSettings, "server"), *FLAGS)
GROUPS: Mapping[str, tuple[Flag, ...]] = MappingProxyType({
    group: tuple(flag for flag in TABLE if flag.group == group)
    for group in ("Model", "Engine", "Replicas", "HTTP", "Log", "Monitoring", "Limits", "Process")
})  # fmt: skip
SUPPORTS = compat.index_supports(compat.ENGINE, compat.SERVER)
OPTIONS: Mapping[str, Flag] = MappingProxyType({
    flag.name: flag
    for flag in (*chain.from_iterable(GROUPS.values()), *(one.flag for one in SUPPORTS.values()))
})  # fmt: skip
LEVELS = ("info", "warning", "error", "critical")  # uvicorn's, from lines of access to none
TEMPLATE_BYTES = 1 << 20


def apply_chat_template(draft: DraftArguments) -> None:
    given = draft.text("chat-template")
    if "{" not in given:
        given = read_text(Path(given), "--chat-template", TEMPLATE_BYTES)
    draft.server["chat_template"] = given
    draft.note("chat-template", "used", "instead of the model's own")


def apply_template_defaults(draft: DraftArguments) -> None:
    name = "default-chat-template-kwargs"
    found = read_template_defaults(f"--{name}", draft.text(name))
    draft.server["template_defaults"] = found
    draft.note(
        name, format_options(found), "used where a request's chat_template_kwargs have no value"
    )


def apply_log_requests(draft: DraftArguments) -> None:
    draft.conflict("disable-log-requests", "enable-log-requests")
    quiet = draft.options["disable-log-requests"] is True
    draft.server["enable_log_requests"] = not quiet
    draft.note("disable-log-requests", "no line a request" if quiet else "a line a request",
               "the opposite of --enable-log-requests")  # fmt: skip


def apply_access_log(draft: DraftArguments) -> None:
    """uvicorn's lines of access are our line a request."""
    draft.conflict("disable-uvicorn-access-log", "enable-log-requests")
    quiet = draft.options["disable-uvicorn-access-log"] is True
    active = "no line a request" if quiet else "a line a request"
    draft.note("disable-uvicorn-access-log", active, "uvicorn logs nothing else")
    silence_requests(draft, quiet)


def apply_log_level(draft: DraftArguments) -> None:
    level = draft.text("uvicorn-log-level")
    if level not in LEVELS:
        raise ConfigError(
            f"--uvicorn-log-level = {shown(level)} is not supported: there is a line a request, "
            f"or none; allowed: {', '.join(LEVELS)}; nearest valid: info"
        )
    active = "a line a request" if level == "info" else "no line a request"
    draft.note("uvicorn-log-level", active, "uvicorn logs nothing else")
    silence_requests(draft, level != "info")


def silence_requests(draft: DraftArguments, quiet: bool) -> None:
    """Turns request lines off, unless they are requested by name."""
    if quiet and "enable-log-requests" not in draft.options:
        draft.server["enable_log_requests"] = False


def apply_environment_key(draft: DraftArguments) -> None:
    """Options take its place: every user can read a command line, not this."""
    name, key = read_server_key()
    if name and not {"api-key", "api-key-file"} & draft.options.keys():
        draft.server["keys"] = (key,)
        draft.notes.append(SettingRequest(name, "set", "on", "clients must send this key"))


def apply_keys(draft: DraftArguments) -> None:
    keys = draft.many("api-key") if "api-key" in draft.options else ()
    files = draft.many("api-key-file") if "api-key-file" in draft.options else ()
    if not all(key.strip() for key in keys):
        raise ConfigError("--api-key = '' is not valid; allowed: one character or more")
    for file in files:
        read_key_file(file)  # refused with the other options; the server reads it again
    draft.server["keys"], draft.server["key_files"] = tuple(keys), tuple(files)


SWITCHES, LONGEST_NAME, LONGEST_TEXT = 32, 64, 4096  # what a request may have of them too


def read_template_defaults(option: str, text: str) -> dict[str, Any]:
    """Variables of a chat template, as `chat_template_kwargs` of a request has them."""
    from flyweight.text.messages import OPTIONS, OWN  # Jinja is for chats alone

    given = parse_object_option(option, text)
    if len(given) > SWITCHES:
        raise ConfigError(f"{option}: {len(given)} switches; allowed: up to {SWITCHES}")
    for name, value in given.items():
        if name in OWN or name in OPTIONS or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(
                f"{option}: {shown(name)} is not a switch of a template; allowed: names of its own "
                f"variables, as enable_thinking, of up to {LONGEST_NAME} characters"
            )
        plain = value is None or isinstance(value, bool | int | float | str)
        if not plain or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            raise ConfigError(
                f"{option}: {name} = {shown(value)} is not valid; allowed: true, false, null, a "
                f"number, or text of up to {LONGEST_TEXT} characters"
            )
    return given


MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        **ENGINE_MEANINGS,
        "chat-template": apply_chat_template,
        "default-chat-template-kwargs": apply_template_defaults,
        "disable-log-requests": apply_log_requests,
        "disable-uvicorn-access-log": apply_access_log,
        "uvicorn-log-level": apply_log_level,
        "api-key": apply_keys,
        "api-key-file": apply_keys,
    }
)
