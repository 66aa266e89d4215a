"""Chat templates: messages to the text a model was trained to answer, in Jinja2's immutable sandbox.

Invariant: a template can neither change anything outside itself nor reach Python's insides; one that fails is a
`RequestError`.  Knows no model.
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


def render(template: str, messages: Sequence[Message], tokenizer: Tokenizer) -> str:
    """The prompt for `messages`, ending where the assistant's answer begins.  Raises `RequestError`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols],
        undefined=jinja2.ChainableUndefined,
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    try:
        return environment.from_string(template).render(
            messages=messages,
            add_generation_prompt=True,
            bos_token=_piece(tokenizer, tokenizer.bos_id),
            eos_token=_piece(tokenizer, next(iter(tokenizer.eos_ids), None)),
        )
    except jinja2.TemplateError as error:
        raise RequestError(f"chat template: {error}", "messages") from None


def _piece(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.piece(token)


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
