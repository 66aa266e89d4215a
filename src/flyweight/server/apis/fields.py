"""Objects of a request's body: what all of them have in common.

Invariant: in every object whose fields are known, a null is as good as an absent field, of fields
that are not known too; other unknown fields are refused.  Free-form objects (schemas, arguments of
tools) are left as they came.  Knows no route.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

IGNORED = "x-ignored"  # marks fields that are accepted and have no effect
ALWAYS: dict[str, Any] = {IGNORED: True}
UNLESS_FALSE: dict[str, Any] = {IGNORED: "unless false"}  # false asks for what is so anyway


class Fields(BaseModel):
    """An object of a body."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if isinstance(given, dict) and any(value is None for value in given.values()):
            return {name: value for name, value in given.items() if value is not None}
        return given


def list_ineffective(body: BaseModel, before: str = "") -> Iterator[str]:
    """Dotted names of the fields that were given and have no effect; `before` is where the object
    is.
    """
    for name, shown, unless_false in _find_ignored(type(body)):
        value = getattr(body, name)
        if name in body.model_fields_set and not (unless_false and value is False):
            yield before + shown
    for name in body.model_fields_set:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            yield from list_ineffective(value, f"{before}{name}.")


@cache
def _find_ignored(kind: type[BaseModel]) -> list[tuple[str, str, bool]]:
    """Fields without effect: name, name in a body, and whether false is honoured."""
    extra = {name: (f.alias, f.json_schema_extra) for name, f in kind.model_fields.items()}
    return [
        (name, alias or name, more[IGNORED] == UNLESS_FALSE[IGNORED])
        for name, (alias, more) in extra.items()
        if isinstance(more, dict) and IGNORED in more
    ]
