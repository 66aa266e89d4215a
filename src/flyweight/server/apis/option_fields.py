"""Fields of request bodies, made from the declarations of the sampling options.

Invariant: a field has the range that `SamplingParams` has.  Knows no option by name.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, create_model

from flyweight.params.options import (
    NumberOption,
    RealOption,
    SamplingOption,
    SwitchOption,
    TextsOption,
    TokenIdsOption,
)
from flyweight.server.apis.body import TOKEN, limited
from flyweight.types import OPTIONS

Body = TypeVar("Body", bound=BaseModel)
Id = Annotated[int, Field(ge=0, lt=2**31, json_schema_extra={TOKEN: True})]
MOST = 2**31 - 1  # whole numbers without another maximum


def with_options(api: str) -> Callable[[type[Body]], type[Body]]:
    """A class decorator: the body, with those options of an API that it does not have yet."""

    def extended(body: type[Body]) -> type[Body]:
        made: dict[str, Any] = {
            option.name_in(name, api): (body_type(option) | None, bounded(name))
            for name, option in OPTIONS.items()
            if api in option.apis and option.name_in(name, api) not in body.model_fields
        }
        return create_model(
            body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **made
        )

    return extended


def bounded(name: str, default: Any = None) -> Any:
    """A field with the meaning, the range and the limit of an option."""
    option = OPTIONS[name]
    more: dict[str, Any] = {"json_schema_extra": limited(option.limit)} if option.limit else {}
    if isinstance(option, NumberOption):
        above = isinstance(option, RealOption) and option.above
        more["gt" if above else "ge"] = option.lowest
        more["le"] = MOST if option.high is None else option.high
    return Field(default, description=option.doc, **more)


def body_type(option: SamplingOption) -> Any:
    """The type of an option's value in a body."""
    if isinstance(option, TextsOption):
        text = Annotated[str, Field(min_length=1, max_length=option.longest)]
        many = Annotated[list[text], Field(max_length=option.most)]
        return text | many if option.alone else many
    if isinstance(option, TokenIdsOption):
        least = 1 if option.none else 0
        return Annotated[list[Id], Field(min_length=least, max_length=option.most, fail_fast=True)]
    if isinstance(option, SwitchOption):
        return bool
    return float if isinstance(option, RealOption) else int
