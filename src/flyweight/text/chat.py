"""Chat templates: messages to the text a model was trained to answer, in Jinja2's sandbox.

Invariant: a template can neither change anything outside itself nor reach Python's insides; one
that fails is a `RequestError`.  What a template may use is what transformers gives it.  Knows no
model.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flyweight.errors import RequestError
from flyweight.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


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
    try:
        return _environment().from_string(template).render(**{**given, **variables})
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        raise RequestError(
            f"messages: the model's chat template fails: {reason}", "messages"
        ) from None
    except (RecursionError, MemoryError):
        raise RequestError("messages: the model's chat template knows no end", "messages") from None


def check(messages: Sequence[Message]) -> None:
    """Raises `RequestError` unless every message has a role and content."""
    if isinstance(messages, str | Mapping) or not messages:
        raise RequestError(
            f"messages = {str(messages)[:80]!r}; allowed: a list of one or more messages",
            "messages",
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"messages[{i}] = {str(message)[:80]!r}; "
                "allowed: a mapping with a role (system, user, assistant) and content",
                "messages",
            )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
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
