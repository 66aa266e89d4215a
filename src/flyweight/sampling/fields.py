"""The parameters of a tool as grammars of their own, for models whose calls are not JSON.

Invariant: a value that its grammar takes satisfies its schema once it is read; what cannot be kept
to in such a form is refused by name.  Knows no form but whether strings stand there as plain text.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from flyweight.errors import RequestError
from flyweight.params.structured import NAME
from flyweight.sampling.schema import prepare_schema
from flyweight.sampling.schema_keywords import ANNOTATIONS, is_ignored
from flyweight.sampling.sources import embed_schema
from flyweight.text.tools.grammar import CallField
from flyweight.text.tools.xmlcall import CLOSE, TEXT, read_types
from flyweight.validation.untrusted import shown

DEFINITIONS = {"$defs", "definitions"}
OBJECT = {"type", "properties", "required", "additionalProperties", *DEFINITIONS}
STRING = {"type", "enum", "const", "minLength", "maxLength", "pattern"}
ENDED = rf"~/(.|\n)*<\/{CLOSE[2:]}(.|\n)*/"  # no value goes on behind its end


def fields(schema: Mapping[str, Any], *, plain: bool, keeps: bool) -> tuple[CallField, ...]:
    """The fields of an object's schema; any values where it `keeps` to none; strings as `plain`
    text or as JSON.  Raises `RequestError`.
    """
    if keeps:
        for name in schema.keys() - OBJECT - ANNOTATIONS:
            if is_ignored(name) or name.startswith("x-"):
                continue
            _refuse(f"the keyword {shown(name)} next to 'properties'")
        prepare_schema({**schema})
    return tuple(_fields(schema, plain, keeps))


def _fields(schema: Mapping[str, Any], plain: bool, keeps: bool) -> Iterator[CallField]:
    required = dict.fromkeys(schema.get("required", ()) if keeps else ())
    given = schema.get("properties")
    properties = dict(given) if isinstance(given, Mapping) else {}
    for name in required:
        properties.setdefault(name, {})
    kinds = read_types({"properties": properties})
    definitions = {name: schema[name] for name in DEFINITIONS & schema.keys()}
    for name, one in properties.items():
        _check(name, plain)
        if plain and (kinds[name] == TEXT or not keeps):
            source = _text(one if keeps and isinstance(one, Mapping) else {})
            yield CallField(name, name in required, "terminal", source)
        elif not keeps:
            yield CallField(name, False, "rule", f'"True" | "False" | "None" | {embed_schema({})}')
        elif not plain and _is_truth(one):
            yield CallField(name, name in required, "rule", '"True" | "False"')
        else:
            own = {**definitions, **one} if isinstance(one, Mapping) else one
            yield CallField(name, name in required, "rule", embed_schema(own))


def _is_truth(schema: object) -> bool:
    """Whether a schema is that of a truth value, and no more."""
    if not isinstance(schema, Mapping) or schema.get("type") != "boolean":
        return False
    return schema.keys() <= {"type", *ANNOTATIONS}


def _check(name: str, plain: bool) -> None:
    """A name that can stand in a tag, or before an equals sign."""
    fits = set("<>\n").isdisjoint(name) if plain else name.isidentifier() and name.isascii()
    if not (fits and 0 < len(name) <= 128):
        _refuse(f"the name {shown(name)} of a parameter")


def _text(schema: Mapping[str, Any]) -> str:
    """A terminal of plain text."""
    made = prepare_schema(schema) if schema else {}
    for name in made.keys() - STRING:
        _refuse(f"the keyword {shown(name)} of a string")
    values = _values(made)
    if values is not None:
        bounds = made.keys() & {"minLength", "maxLength", "pattern"}
        if bounds or any(not isinstance(one, str) or CLOSE in one for one in values):
            _refuse("an 'enum' of a string next to other keywords")
        if not values:
            _refuse("a string that no value is left of")
        return " | ".join(_delimit_regex(_escape(one)) for one in values)
    parts = [
        ENDED,
        _delimit_regex(rf"(.|\n){{{made.get('minLength', 0)},{made.get('maxLength', '')}}}"),
    ]
    if "pattern" in made:
        parts.append(_delimit_regex(_whole(made["pattern"])))
    return " & ".join(parts)


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """What `enum` and `const` leave; None where neither is there."""
    values: list[Any] | None = schema.get("enum")
    if "const" not in schema:
        return values
    const = schema["const"]
    return [const] if values is None else [one for one in values if one == const]


def _whole(pattern: str) -> str:
    """A pattern that may be found anywhere in a text, as one of the text."""
    depth, bare = 0, False
    for i, c in enumerate(pattern):
        if i and pattern[i - 1] == "\\":
            continue
        depth += (c == "(") - (c == ")")
        bare = bare or (c == "|" and depth == 0)
    if bare:
        pattern = f"(?:{pattern})"
        if "^" in pattern or "$" in pattern:
            _refuse(f"the pattern {shown(pattern)}, whose alternatives are anchored,")
    before = "" if pattern.startswith("^") else r"(.|\n)*"
    ended = pattern.endswith("$") and not pattern.endswith("\\$")
    return (
        before + pattern.removeprefix("^")[: -1 if ended else None] + ("" if ended else r"(.|\n)*")
    )


def _escape(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else rf"\x{{{ord(c):X}}}" for c in text)


def _delimit_regex(source: str) -> str:
    """A regex between Lark's marks."""
    found, escaped = [], False
    for c in source:
        found.append("\\/" if c == "/" and not escaped else "\\n" if c == "\n" else c)
        escaped = c == "\\" and not escaped
    return f"/{''.join(found)}/"


def _refuse(what: str) -> NoReturn:
    problem = f": {what} cannot be enforced in the call format of this model"
    raise RequestError(problem, NAME, code="bad_constraint")
