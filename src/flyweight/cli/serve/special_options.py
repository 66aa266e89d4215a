"""Options of the server that are more than a field of `ServerSettings`: what each means; the
engine's are in `arguments.meanings`.

Invariant: a meaning either goes into the draft, with a line of the ledger where it is not plain, or
is refused with the reason and the nearest that is built.
"""

from pathlib import Path

from flyweight.arguments import meanings
from flyweight.arguments.draft import DraftArguments
from flyweight.arguments.meanings import Meaning
from flyweight.arguments.objects import told
from flyweight.arguments.wishes import SettingRequest
from flyweight.cli.serve.switches import switches
from flyweight.config import served_key
from flyweight.errors import CheckpointError, ConfigError
from flyweight.validation.untrusted import read_bytes, shown

LEVELS = ("info", "warning", "error", "critical")  # uvicorn's, from lines of access to none
SECRET_BYTES, TEMPLATE_BYTES = 1 << 20, 1 << 20


def _chat_template(draft: DraftArguments) -> None:
    given = draft.text("chat-template")
    if "{" not in given:
        given = _lines(Path(given), "--chat-template", TEMPLATE_BYTES)
    draft.server["chat_template"] = given
    draft.wish("chat-template", "used", "instead of the model's own")


def _switches(draft: DraftArguments) -> None:
    name = "default-chat-template-kwargs"
    found = switches(f"--{name}", draft.text(name))
    draft.server["template_defaults"] = found
    draft.wish(name, told(found), "where a request's chat_template_kwargs do not say")


def _quiet(draft: DraftArguments) -> None:
    draft.conflict("disable-log-requests", "enable-log-requests")
    quiet = draft.options["disable-log-requests"] is True
    draft.server["enable_log_requests"] = not quiet
    draft.wish("disable-log-requests", "no line a request" if quiet else "a line a request",
               "what enable-log-requests says, the other way about")  # fmt: skip


def _access(draft: DraftArguments) -> None:
    """uvicorn's lines of access are our line a request."""
    draft.conflict("disable-uvicorn-access-log", "enable-log-requests")
    quiet = draft.options["disable-uvicorn-access-log"] is True
    active = "no line a request" if quiet else "a line a request"
    draft.wish("disable-uvicorn-access-log", active, "that is all uvicorn would say")
    _hush(draft, quiet)


def _level(draft: DraftArguments) -> None:
    asked = draft.text("uvicorn-log-level")
    if asked not in LEVELS:
        raise ConfigError(
            f"--uvicorn-log-level = {shown(asked)} is not supported: there is a line a request, "
            f"or none; allowed: {', '.join(LEVELS)}; nearest valid: info"
        )
    active = "a line a request" if asked == "info" else "no line a request"
    draft.wish("uvicorn-log-level", active, "that is all uvicorn would say")
    _hush(draft, asked != "info")


def _hush(draft: DraftArguments, quiet: bool) -> None:
    """No line a request, unless it is asked for by name."""
    if quiet and "enable-log-requests" not in draft.options:
        draft.server["enable_log_requests"] = False


def key_of_environment(draft: DraftArguments) -> None:
    """Options take its place: a command line can be read by everybody on the machine, this not."""
    name, key = served_key()
    if name and not {"api-key", "api-key-file"} & draft.options.keys():
        draft.server["keys"] = (key,)
        draft.wishes.append(SettingRequest(name, "set", "on", "clients must send this key"))


def _keys(draft: DraftArguments) -> None:
    keys = list(draft.many("api-key")) if "api-key" in draft.options else []
    if "api-key-file" in draft.options:
        for file in draft.many("api-key-file"):
            lines = _lines(Path(file), "--api-key-file", SECRET_BYTES).splitlines()
            found = [line.strip() for line in lines]
            found = [line for line in found if line and not line.startswith("#")]
            if not found:
                raise ConfigError(f"--api-key-file {file}: no key in it")
            keys += found
    if not all(key.strip() for key in keys):
        raise ConfigError("--api-key = '' is not valid; allowed: one character or more")
    draft.server["keys"] = tuple(keys)


def _lines(path: Path, option: str, most: int) -> str:
    try:
        return read_bytes(path.expanduser(), most).decode("utf-8")
    except CheckpointError as error:
        raise ConfigError(f"{option} {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option} {path}: not UTF-8 text") from None


MEANINGS: dict[str, Meaning] = {
    **meanings.MEANINGS,
    "chat-template": _chat_template,
    "default-chat-template-kwargs": _switches,
    "disable-log-requests": _quiet,
    "disable-uvicorn-access-log": _access,
    "uvicorn-log-level": _level,
    "api-key": _keys,
    "api-key-file": _keys,
}
