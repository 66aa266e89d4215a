"""Grammars of calls whose arguments are not one JSON object: a rule for each parameter.

Invariant: what the rules take, `xmlcall` or `pythoncall` reads as a call with these parameters,
each once.  Written in Lark as llguidance reads it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flyweight.text.tools.xmlcall import CLOSE, END, FUNCTION, PARAMETER

CLOSED = json.dumps(f"\n{CLOSE}\n")


@dataclass(frozen=True, slots=True)
class CallField:
    """A parameter and its values: a `rule` of Lark, or (of plain text) a `terminal`."""

    name: str
    required: bool
    kind: Literal["rule", "terminal"]
    source: str


def write_tagged_rules(i: int, name: str, fields: Sequence[CallField]) -> list[str]:
    """Rules of `one_{i}`, a call in Qwen3-Coder's tags."""
    parts = [f"field_{i}_{j}{'' if one.required else '?'}" for j, one in enumerate(fields)]
    head, end = json.dumps(f"{FUNCTION}{name}>\n"), json.dumps(END)
    lines = [f"one_{i}: {' '.join([head, *parts, end])}"]
    for j, one in enumerate(fields):
        opening = json.dumps(f"{PARAMETER}{one.name}>\n", ensure_ascii=False)
        lines.append(f"field_{i}_{j}: {opening} value_{i}_{j}")
        if one.kind == "terminal":
            lines.append(f"PLAIN_{i}_{j}: {one.source}")
            lines.append(f"value_{i}_{j}[lazy]: PLAIN_{i}_{j} {CLOSED}")
        else:
            lines.append(f"json_{i}_{j}: {one.source}")
            lines.append(f"value_{i}_{j}: json_{i}_{j} {CLOSED}")
    return lines


def write_python_rules(i: int, name: str, fields: Sequence[CallField]) -> list[str]:
    """Rules of `one_{i}`, a call as Python spells it, the required ones first."""
    ordered = sorted(fields, key=lambda one: not one.required)
    needed = sum(one.required for one in ordered)
    lines = [f'one_{i}: {json.dumps(name + "(")} first_{i}_0 ")"']
    for j, one in enumerate(ordered):
        lines.append(f"field_{i}_{j}: {json.dumps(one.name + '=')} value_{i}_{j}")
        lines.append(f"value_{i}_{j}: {one.source}")
        other = f" | first_{i}_{j + 1}" if j >= needed else ""
        lines.append(f"first_{i}_{j}: field_{i}_{j} later_{i}_{j + 1}{other}")
        further = f'", " field_{i}_{j} later_{i}_{j + 1}'
        other = f" | later_{i}_{j + 1}" if j >= needed else ""
        lines.append(f"later_{i}_{j}: {further}{other}")
    last = len(ordered)
    return [*lines, f'first_{i}_{last}: ""', f'later_{i}_{last}: ""']
