"""What all objects of request bodies have in common, and which unknown fields may be removed.

Invariant: a null field is the same as an absent one, also if its name is unknown.  Other unknown
fields are refused; a lenient server removes them, unless they would constrain the answer.
Free-form objects (schemas, arguments of tools) are not changed.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

IGNORED = "x-ignored"  # marks fields that are accepted and have no effect
ALWAYS: dict[str, Any] = {IGNORED: True}
UNLESS_FALSE: dict[str, Any] = {IGNORED: "unless false"}  # false requests what is so anyway
Place = tuple[int | str, ...]
MOST = 1024  # mistakes of a body that are looked at
UNKNOWN = "extra_forbidden"
CONSTRAINING = {  # names of what an answer must be, in one word and without a final s
    "grammar", "schema", "jsonschema", "jsonobject", "jsonmode", "regex", "choice", "format",
    "responseformat", "responseschema", "responsejsonschema", "outputformat", "outputschema",
    "structuredoutput", "structuraltag", "ebnf",
}  # fmt: skip


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
    """Dotted names of the given fields that have no effect; `before` is the object's place."""
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
    """Fields without effect: name, name in a body, and whether false is not reported."""
    extra = {name: (f.alias, f.json_schema_extra) for name, f in kind.model_fields.items()}
    return [
        (name, alias or name, more[IGNORED] == UNLESS_FALSE[IGNORED])
        for name, (alias, more) in extra.items()
        if isinstance(more, dict) and IGNORED in more
    ]


def remove_unknown(given: dict[str, Any], error: ValidationError) -> list[str]:
    """Removes unknown fields from a body that was refused with `error`, and returns their dotted
    names.
    """
    if error.error_count() > MOST:
        return []
    found = error.errors(include_url=False, include_context=False)
    wrong = {place for e in found if e["type"] != UNKNOWN for place in _list_parents(e["loc"])}
    names = []
    for e in found:
        if (
            e["type"] == UNKNOWN
            and e["loc"][:-1] not in wrong
            and not constrains(e["loc"][-1], e["input"])
        ):
            path = _find_path(given, e["loc"])
            if path is not None and _remove(given, path):
                names.append(".".join(map(str, path)))
    return names


def constrains(name: int | str, value: Any = None) -> bool:
    """Whether a field, or one within it, would constrain the answer.  Without it, the answer would
    not be what the client wants.
    """
    plain = str(name)[:100].lower().replace("_", "").replace("-", "")
    if plain.startswith("guided") or plain.removesuffix("s") in CONSTRAINING:
        return True
    return isinstance(value, dict) and any(constrains(one) for one in list(value)[:MOST])


def _list_parents(place: Place) -> list[Place]:
    """A place and all places that contain it."""
    return [place[:i] for i in range(len(place) + 1)]


def _find_path(value: Any, place: Place) -> Place | None:
    """An error's place as keys of the body; the place also names the kinds that were tried."""
    if not place:
        return ()
    head, rest = place[0], place[1:]
    inside = isinstance(value, dict) and head in value
    inside = inside or (isinstance(value, list) and isinstance(head, int) and head < len(value))
    if inside:
        found = _find_path(value[head], rest)
        if found is not None:
            return (head, *found)
    return _find_path(value, rest) if rest and isinstance(head, str) else None


def _remove(given: Any, path: Place) -> bool:
    """Whether the field was there: several kinds may have reported the same one."""
    for key in path[:-1]:
        given = given[key]
    return given.pop(path[-1], UNKNOWN) is not UNKNOWN
