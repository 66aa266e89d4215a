"""Chat templates: messages to the text a model was trained to answer, in Jinja2's sandbox.

Invariant: a template can neither change anything outside itself nor reach Python's insides; one
that fails, whatever it raises, is a `RequestError`.  What a template may use is what transformers
gives it.  Knows no model.

A prompt may have MOST_CHARACTERS and take MOST_SECONDS, both looked at between the pieces a
template writes.  That cannot stop what writes nothing while it works: an empty loop, a macro or a
`set` block with a loop inside, one expression that makes a huge string.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flyweight.errors import RequestError
from flyweight.text.tokenizer import Tokenizer
from flyweight.untrusted import one_line, shown

Message = Mapping[str, Any]

MOST_CHARACTERS = 16 << 20
MOST_SECONDS = 10.0
MOST_TEMPLATE = 1 << 20  # characters; compiling one cannot be interrupted
FAILS = "messages: the model's chat template"


class Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; here it only renders them, in
    their own scope as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012  the base class has a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def render(
    template: str, messages: Sequence[Message], tokenizer: Tokenizer, **variables: object
) -> str:
    """The prompt for `messages`, ending where the assistant's answer begins; BOS and the like are
    part of it.  `variables` are the template's own switches (enable_thinking).  Raises
    `RequestError`.
    """
    check(messages)
    given = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": _piece(tokenizer, tokenizer.bos_id),
        "eos_token": _piece(tokenizer, tokenizer.eos_id),
        "unk_token": tokenizer.marks.unk_token,
        "pad_token": tokenizer.marks.pad_token,
    }
    if len(template) > MOST_TEMPLATE:
        raise RequestError(
            f"{FAILS} has {len(template)} characters; at most {MOST_TEMPLATE}", "messages"
        )
    try:
        pieces = _environment().from_string(template).generate(**{**given, **variables})
        return "".join(_bounded(pieces))
    except RequestError:
        raise
    except (RecursionError, MemoryError):
        raise RequestError(f"{FAILS} knows no end", "messages") from None
    except Exception as error:  # all that runs in there is the template's
        reason = one_line(str(error)) or type(error).__name__
        raise RequestError(f"{FAILS} fails: {reason}", "messages") from None


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces, until they are too many or too late."""
    size, end = 0, monotonic() + MOST_SECONDS
    for piece in pieces:
        size += len(piece)
        if size > MOST_CHARACTERS:
            raise RequestError(f"{FAILS} writes more than {MOST_CHARACTERS} characters", "messages")
        if monotonic() > end:
            raise RequestError(f"{FAILS} takes more than {MOST_SECONDS:g} seconds", "messages")
        yield piece


def check(messages: Sequence[Message]) -> None:
    """Raises `RequestError` unless every message has a role and content."""
    if isinstance(messages, str | Mapping) or not messages:
        raise RequestError(
            f"messages = {shown(messages)}; allowed: a list of one or more messages",
            "messages",
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"messages[{i}] = {shown(message)}; "
                "allowed: a mapping with a role (system, user, assistant) and content",
                "messages",
            )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    return environment


def _piece(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token)


def _tojson(value: object, **form: Any) -> str:
    """Jinja2's own filter escapes HTML; templates mean plain JSON."""
    return json.dumps(value, **{"ensure_ascii": False, **form})


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
