"""Prompts as bodies give them: text or ids, one or several.

Invariant: what a body calls one prompt is one prompt; which form it has is seen from its first
item.
"""

from functools import partial
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from flyweight.errors import RequestError
from flyweight.requests.prompts import PIECE, encode_prompt
from flyweight.server.apis.sampling_fields import Id
from flyweight.server.served_model import ServedModel

# The first mistake of a list is told, so no others are looked for.
Ids = Annotated[list[Id], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Prompts = str | Ids | Texts | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]


def split_prompts(given: Any) -> list[Any]:
    """Each prompt by itself."""
    single = isinstance(given, str) or isinstance(given[0], int)
    return [given] if single else list(given)


class PromptFit(Protocol):
    """A body that says how its prompts become ids."""

    add_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None


def fit_prompts(
    prompts: list[Any], body: PromptFit, model: ServedModel, answer: int = 1
) -> list[Any]:
    """Prompts with BOS and the like or without, as many of their ids as are wanted, and `answer`
    more of the context left; those that take work are functions.
    """
    special, cuts = body.add_special_tokens is not False, body.truncate_prompt_tokens is not None
    if special and not cuts:
        return prompts
    return [partial(_fit_prompt, one, body, model, answer) for one in prompts]


def _fit_prompt(one: Any, body: PromptFit, model: ServedModel, answer: int) -> dict[str, Any]:
    """Raises `RequestError`."""
    special, cuts = body.add_special_tokens is not False, body.truncate_prompt_tokens is not None
    longest = model.max_model_len
    text, ids = (one, []) if isinstance(one, str) else (None, one)
    if text is not None:
        if cuts:
            check_size("prompt", text, get_max_bytes(model))
        whole = None if cuts else longest
        ids = encode_prompt(model.tokenizer, text, whole, add_special=special)
    kept = truncate_ids(ids, body, longest - answer)
    return {"prompt": text if len(kept) == len(ids) else None, "prompt_token_ids": kept}


def get_max_bytes(model: ServedModel) -> int:
    """Of a text that is read to its end though it may not fit."""
    return max(model.settings.max_tokenize_bytes, PIECE * model.max_model_len)


def check_size(name: str, text: str, most: int) -> None:
    """Raises `RequestError` where a text is too long to be read to its end."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise RequestError(
            f"has {size} bytes", name, allowed=f"at most {most} (--max-tokenize-bytes)"
        )


def truncate_ids(ids: list[int], body: PromptFit, room: int) -> list[int]:
    """The last ids, or the first (`right` is cut off); -1: as many as there is room for."""
    most = body.truncate_prompt_tokens
    most = room if most == -1 else most
    if most is None or len(ids) <= most:
        return ids
    return ids[:most] if body.truncation_side == "right" else ids[len(ids) - most :]
