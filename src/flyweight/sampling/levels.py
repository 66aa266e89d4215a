"""How far the rules of a grammar, or the parts of a schema, lead into each other: counted before a
library follows them on its stack, which ends the process where it is used up.

Invariant: what passes is followed to its end within `DEEPEST` steps, except for what leads back to
itself, which has `MOST_LOOPED` steps in all; no recursion here, and time goes with the length.
Knows no rule's and no keyword's meaning but `$ref`.
"""

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from flyweight.errors import RequestError
from flyweight.params.structured import NAME

# A stack of 8 MiB ends after 2,200 steps or more, by what they are; 1,400 were found to be fine.
DEEPEST, MOST_LOOPED = 500, 900
STRING = r'"(?:[^"\\\n]|\\.)*+"'
SILENT = rf"{STRING}|//[^\n]*|\#[^\n]*|/(?:[^/\\\n]|\\.)++/"  # names nothing
QUIET = re.compile(SILENT)
SCHEMAS = re.compile(rf"{SILENT}|(?P<schema>%json\s*)")
HEAD = re.compile(
    r"(?<!\w)([A-Za-z_]\w*+)\s*(?:::\w++\s*)?"
    r"(?:\[[^\[\]:]*+\]\s*|\{[^{}:]*+\}\s*|\.-?\d++\s*)*+(?<!:):(?!:)"
)
WORD = re.compile(r"[A-Za-z_]\w*+")
BRACKET = re.compile(r"[()\[\]{}]")
# Of a part: how many steps it is itself, and where it leads.
Leads = Mapping[Hashable, tuple[int, set[Any]]]


def check_rules(text: str) -> None:
    """Of a grammar in Lark, and the schemas in it.  Raises `RequestError`."""
    _check(_measure_rules(text), ": its rules, with their brackets,", f"{NAME}.grammar")
    at = 0
    while (found := SCHEMAS.search(text, at)) is not None:
        at = found.end()
        if found["schema"] is None:
            continue
        try:
            schema, at = json.JSONDecoder().raw_decode(text, at)
        except RecursionError:
            problem = ": a schema of it is nested too deeply"
            raise RequestError(problem, f"{NAME}.grammar", code="bad_constraint") from None
        except ValueError:  # reported by the reader
            return
        check_schema(schema, f"{NAME}.grammar")


def check_schema(schema: object, field: str = f"{NAME}.json") -> None:
    """Raises `RequestError`."""
    _check(_measure_parts(schema), ": the parts of a schema, by $ref and within each other,", field)


def _check(leads: Leads, what: str, field: str) -> None:
    deepest, looped = _measure_levels(leads)
    if deepest > DEEPEST:
        raise RequestError(
            f"{what} lead {deepest} steps deep; allowed: up to {DEEPEST}; what only leads on can "
            "be left out, and a repetition written as one",
            field,
            code="bad_constraint",
        )
    if looped > MOST_LOOPED:
        raise RequestError(
            f"{what} have {looped} steps that lead back to themselves, or to such; allowed: up to "
            f"{MOST_LOOPED}",
            field,
            code="bad_constraint",
        )


def _measure_levels(leads: Leads) -> tuple[int, int]:
    """The longest way that ends; and the steps of all that may go on without end."""
    users: dict[Hashable, list[Hashable]] = {name: [] for name in leads}
    open_ends: dict[Hashable, int] = {}
    for name, (_, targets) in leads.items():
        known = [target for target in targets if target in leads]
        open_ends[name] = len(known)
        for target in known:
            users[target].append(name)
    below = dict.fromkeys(leads, 0)
    settled = [name for name, count in open_ends.items() if not count]
    deepest = 0
    for name in settled:  # grows
        level = below[name] + leads[name][0]
        deepest = max(deepest, level)
        for user in users[name]:
            below[user] = max(below[user], level)
            open_ends[user] -= 1
            if not open_ends[user]:
                settled.append(user)
    looped = leads.keys() - set(settled)
    return deepest, sum(leads[name][0] for name in looped)


def _measure_rules(text: str) -> Leads:
    plain = QUIET.sub(" ", text)
    heads = list(HEAD.finditer(plain))
    ends = [head.start() for head in heads[1:]] + [len(plain)]
    found: dict[Hashable, tuple[int, set[Any]]] = {}
    for head, end in zip(heads, ends, strict=False):
        body = plain[head.end() : end]
        steps, names = found.get(head[1], (0, set()))
        found[head[1]] = max(steps, 1 + _count_nested(body)), names | set(WORD.findall(body))
    return found


def _count_nested(body: str) -> int:
    """Brackets within each other."""
    deepest = level = 0
    for mark in BRACKET.findall(body):
        level += 1 if mark in "([{" else -1
        deepest = max(deepest, level)
    return deepest


def _measure_parts(schema: object) -> Leads:
    """Objects and lists, by their identity."""
    found: dict[Hashable, tuple[int, set[Any]]] = {}
    refs: list[tuple[object, str]] = []
    named: dict[str, object] = {"": schema}
    left = [schema]
    while left:
        part = left.pop()
        inner = [one for one in _list_within(part) if isinstance(one, dict | list)]
        found[id(part)] = 1, {id(one) for one in inner}
        left += inner
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                refs.append((part, part["$ref"]))
            for key, mark in (("$id", ""), ("$anchor", "#")):
                if isinstance(part.get(key), str):
                    named[mark + part[key]] = part
    for part, target in refs:
        found[id(part)][1].add(id(_find_target(named, target)))
    return found


def _list_within(part: object) -> Iterator[object]:
    if isinstance(part, dict):
        yield from part.values()
    elif isinstance(part, list):
        yield from part


def _find_target(named: Mapping[str, object], target: str) -> object:
    """What a $ref leads to, as far as it is known; else the whole."""
    base, _, inner = target.partition("#")
    part = named.get(base, named[""])
    if not inner.startswith("/"):
        return named.get(f"#{inner}", part) if inner else part
    for step in inner[1:].split("/"):
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and key.isdecimal() and int(key[:9]) < len(part):
            part = part[int(key)]
        elif isinstance(part, dict):
            part = part.get(key)
        else:
            return None
    return part
