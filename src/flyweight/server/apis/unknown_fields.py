"""Fields within a body that nothing there knows, for a server that is lenient.

Invariant: a field is taken out where it is all that a part of the body is refused for; of a part
that may be of several kinds, where one of them would take the rest.  A field that constrains the
answer is never taken out.
"""

from typing import Any

from pydantic import ValidationError

Place = tuple[int | str, ...]
MOST = 1024  # mistakes of a body that are looked at
UNKNOWN = "extra_forbidden"
CONSTRAINING = {  # names of what an answer must be, in one word and without a final s
    "grammar", "schema", "jsonschema", "jsonobject", "jsonmode", "regex", "choice", "format",
    "responseformat", "responseschema", "responsejsonschema", "outputformat", "outputschema",
    "structuredoutput", "structuraltag", "ebnf",
}  # fmt: skip


def remove_unknown(given: dict[str, Any], error: ValidationError) -> list[str]:
    """Takes fields out of a body that was refused for `error`; their dotted names."""
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
    """Whether a field, or one within it, would say what the answer must look like: without it, the
    answer is none to what was asked.
    """
    plain = str(name)[:100].lower().replace("_", "").replace("-", "")
    if plain.startswith("guided") or plain.removesuffix("s") in CONSTRAINING:
        return True
    return isinstance(value, dict) and any(constrains(one) for one in list(value)[:MOST])


def _list_parents(place: Place) -> list[Place]:
    """A place, and all that it is part of."""
    return [place[:i] for i in range(len(place) + 1)]


def _find_path(value: Any, place: Place) -> Place | None:
    """An error's place as keys of the body: it names kinds, too, that were tried there."""
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
    """Whether it was there: several kinds may have missed the same field."""
    for key in path[:-1]:
        given = given[key]
    return given.pop(path[-1], UNKNOWN) is not UNKNOWN
