"""What a parser makes of an answer, piece by piece.

Invariant: deltas come in the order of the text; a call's name comes before its arguments.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class DeltaKind(Enum):
    """`WHOLE` ends a call that had begun; `VOID` takes one back: what it was made of follows as
    content.
    """

    CONTENT = "content"
    REASONING = "reasoning"
    NAME = "name"
    ARGUMENTS = "arguments"
    WHOLE = "whole"
    VOID = "void"


class Delta(NamedTuple):
    """`text` is new; `call` numbers the call it belongs to."""

    kind: DeltaKind
    text: str
    call: int = 0


@dataclass(slots=True)
class ParsedCall:
    """A tool's name, and its arguments as JSON text."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class ParsedAnswer:
    """Deltas joined."""

    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> "ParsedAnswer":
        content: list[str] = []
        reasoning: list[str] = []
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for delta in deltas:
            if delta.kind is DeltaKind.CONTENT:
                content.append(delta.text)
            elif delta.kind is DeltaKind.REASONING:
                reasoning.append(delta.text)
            elif delta.kind is DeltaKind.NAME:
                names[delta.call], arguments[delta.call] = delta.text, []
            elif delta.kind is DeltaKind.ARGUMENTS:
                arguments[delta.call].append(delta.text)
            elif delta.kind is DeltaKind.VOID:
                del names[delta.call]
        calls = [ParsedCall(name, "".join(arguments[i])) for i, name in names.items()]
        return cls("".join(content), "".join(reasoning), calls)
