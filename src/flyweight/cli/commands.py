"""The commands of a session: `/set temperature 0.2`, `/save FILE` and the others.

Invariant: a command that is refused has changed nothing.  Knows no model.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyweight.cli.samplers import LISTS, SETTABLE
from flyweight.errors import RequestError, nearest
from flyweight.types import SamplingParams
from flyweight.validation.untrusted import printable

if TYPE_CHECKING:
    from flyweight.cli.session import ChatSession

HELP = '''\
/set [NAME [VALUE]]  show or change a sampling option: /set temperature 0.2
/system [TEXT]       show or change the system message; "" removes it
/retry               answer the last prompt again
/save FILE           save the conversation
/load FILE           continue a saved conversation
/reset               forget the conversation
/stats               describe the last answer, the conversation and the engine
/help                list the commands
/bye                 leave (Ctrl-D does too; Ctrl-C stops an answer)

A pasted paragraph is one prompt; """ begins and ends a text of several lines.'''
ALIASES = {  # Ollama's and llama.cpp's names
    "/?": "/help",
    "/clear": "/reset",
    "/regen": "/retry",
    "/exit": "/bye",
    "/quit": "/bye",
}
OPTIONS = tuple(SETTABLE)
NONE = {"none": None, "null": None}


def obey(session: "ChatSession", line: str) -> bool:
    """Does what a line beginning with `/` says; False when it ends the session."""
    word, _, rest = line.partition(" ")
    word, rest = ALIASES.get(word, word), rest.strip()
    if word == "/bye":
        return False
    plain: Mapping[str, Callable[[], None]] = {
        "/help": lambda: session.show(HELP),
        "/reset": session.reset,
        "/stats": session.stats,
        "/retry": session.retry,
    }
    valued: Mapping[str, Callable[[ChatSession, str], None]] = {
        "/set": change,
        "/system": set_system,
        "/save": save,
        "/load": load,
    }
    if word in plain and rest:
        raise RequestError(f"{word} takes no value; allowed: {word}")
    if word in plain:
        plain[word]()
    elif word in valued:
        valued[word](session, rest)
    else:
        hint = nearest(word, [*plain, *valued, *ALIASES, "/bye"])
        session.show(f"unknown command {printable(word)}{hint}; /help lists them")
    return True


def change(session: "ChatSession", text: str) -> None:
    """`/set NAME VALUE`; without a value it shows the option, without a name all of them."""
    name, _, value = text.removeprefix("parameter ").strip().partition(" ")  # Ollama's word
    name = name.lstrip("-").replace("-", "_")  # --max-tokens, as on the command line
    if not name:
        width = max(map(len, OPTIONS))
        rows = [f"{one:{width}}  {format_option(session.params, one)}" for one in OPTIONS]
        session.show("\n".join(rows))
        return
    if name not in OPTIONS:
        hint = nearest(name, OPTIONS)
        raise RequestError(f"unknown option {printable(name)}{hint}; /set lists them")
    if value.strip():
        session.params = replace(session.params, **{name: parse_value(name, value.strip())})
    session.show(f"{name} = {format_option(session.params, name)}")


def parse_value(name: str, text: str) -> Any:
    """A value: JSON, none, or plain text; of an option that takes several texts, one is a list."""
    try:
        value = NONE[text] if text in NONE else json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name in LISTS:
        return tuple(value) if isinstance(value, list) else () if value is None else (str(value),)
    return value


def format_option(params: SamplingParams, name: str) -> str:
    """The value of an option as `/set` takes it."""
    value = getattr(params, name)
    if name in LISTS:
        value = list(value)
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def set_system(session: "ChatSession", text: str) -> None:
    """`/system TEXT`; without a text it shows the message."""
    if text:
        session.conversation.system = "" if text in ('""', "''") else text
    session.show(session.conversation.system or "no system message")


def save(session: "ChatSession", text: str) -> None:
    file = parse_path("/save", text)
    session.conversation.save(file)
    session.show(f"saved {session.turns()} to {printable(str(file))}")


def load(session: "ChatSession", text: str) -> None:
    file = parse_path("/load", text)
    session.conversation.load(file)
    session.forget_last()
    session.show(f"loaded {session.turns()} from {printable(str(file))}")


def parse_path(command: str, text: str) -> Path:
    if not text:
        raise RequestError(f"{command} needs the name of a file: {command} story.json")
    quoted = len(text) > 2 and text[0] == text[-1] and text[0] in "\"'"
    return Path(text[1:-1] if quoted else text).expanduser()
