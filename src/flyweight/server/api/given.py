"""Prompts as bodies give them: text or ids, one or several.

Invariant: what a body calls one prompt is one prompt; which form it has is seen from its first
item.
"""

from typing import Annotated, Any

from pydantic import Field

from flyweight.server.api.sampling import Id
from flyweight.text.tokenizer import Tokenizer

# The first mistake of a list is told, so no others are looked for.
Ids = Annotated[list[Id], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Prompts = str | Ids | Texts | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]


def each(given: Any) -> list[Any]:
    """Each prompt by itself."""
    single = isinstance(given, str) or isinstance(given[0], int)
    return [given] if single else list(given)


def bare(prompts: list[Any], tokenizer: Tokenizer) -> list[Any]:
    """Prompts whose text gets no BOS and the like."""
    return [
        {"prompt": one, "prompt_token_ids": tokenizer.encode(one, add_special=False)}
        if isinstance(one, str)
        else one
        for one in prompts
    ]
