"""The keywords of JSON Schema: which are enforced, which annotate, and which names are ignored.

Invariant: a name that no draft knows cannot constrain a value, so it is ignored; one that is nearly
a keyword's is a misspelling of it, and refused.  Knows no grammar engine.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from flyweight.errors import edits

ANNOTATIONS = {
    "$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "contentMediaType", "contentEncoding", "contentSchema", "discriminator",
}  # fmt: skip
NAMES = {"$id", "$anchor", "$ref"}
PLAIN = {  # enforced as they stand
    "type", "enum", "const", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties",
    "required",
}  # fmt: skip
DEFINITIONS = {"$defs", "definitions"}
MAPS = {"properties", "patternProperties", *DEFINITIONS}
LISTS = {"allOf", "anyOf", "oneOf", "prefixItems"}
SINGLE = {"items", "additionalProperties", "additionalItems"}
ENFORCED = PLAIN | MAPS | LISTS | SINGLE | NAMES | {"pattern", "format"}
LACKING = {  # known to JSON Schema, not to us
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
    "$recursiveAnchor", "$vocabulary", "x-guidance",
}  # fmt: skip
# Other tools' annotations, nearly spelled as keywords are, or known under a condition.
HARMLESS = {"id", "example", "readonly", "_format", "strict", "nullable", "enumNames"}


def meant(name: str) -> str:
    """The keyword that an unknown name is a misspelling of; empty where it is of none."""
    if name in HARMLESS:
        return ""
    bare = _bare(name[:40])
    found = ((_wrong(bare, _bare(known)), known) for known in ENFORCED | LACKING)
    wrong, known = min(found)
    return known if wrong < 3 else ""


def _wrong(name: str, word: str) -> int:
    """Letters in which a name differs from a keyword; 3 where it is another name."""
    if name == word or abs(len(name) - len(word)) > 2:
        return 0 if name == word else 3
    most = 0 if len(word) < 4 else 1 if len(word) < 8 else 2
    found = edits(name, word)
    return found if found <= most and name[:1] == word[:1] else 3


def _bare(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").strip("$")


def is_ignored(name: str) -> bool:
    """Whether an unknown name has no effect.  Those that begin with `x-` are meant to have none."""
    if name in ENFORCED or name in ANNOTATIONS or name in LACKING:
        return False
    return not name.startswith("x-") and not meant(name)


def ignored_keywords(schema: object) -> list[str]:
    """Names within a schema that have no effect, in order, each once: those that no draft knows,
    and `nullable` where there is no type that it adds null to.
    """
    found: dict[str, None] = {}
    left = [schema]
    while left:
        one = left.pop()
        if not isinstance(one, Mapping):
            continue
        for name in one:
            if (name != "nullable" or "type" not in one) and is_ignored(name):
                found[name] = None
        left += reversed(list(_within(one)))
    return list(found)


def _within(schema: Mapping[str, Any]) -> Iterator[object]:
    """The schemas directly within one."""
    for name, value in schema.items():
        if name in MAPS and isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, list) and name in (*LISTS, "items"):
            yield from value
        elif name in SINGLE:
            yield value
