"""An answer's reasoning, content and calls, as it grows: one parser for one choice.

Invariant: joined, what `push` and `finish` give does not depend on how the text was cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyweight.text.tools.calls import CallSplitter
from flyweight.text.tools.deltas import Delta, DeltaKind
from flyweight.text.tools.formats import CallFormat, ReasoningMarks
from flyweight.text.tools.reasoning import ReasoningSplitter
from flyweight.text.tools.xmlcall import Types


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How an answer is to be read: `tools` by their names, at most `most` calls; `opened`: the
    prompt ended inside reasoning; `typed`: the types of the tools' parameters, for a format that
    does not tell a string from a number; `either`: an answer begins with a call or has none.
    """

    calls: CallFormat | None = None
    tools: frozenset[str] = frozenset()
    most: int | None = None
    reasoning: ReasoningMarks | None = None
    opened: bool = False
    typed: Mapping[str, Types] = field(default_factory=dict)
    either: bool = False

    @property
    def plain(self) -> bool:
        """Whether all of an answer is content."""
        return self.reasoning is None and (self.calls is None or not self.tools)


class AnswerParser:
    """Reads one answer."""

    def __init__(self, reading: AnswerFormat) -> None:
        marks, form = reading.reasoning, reading.calls
        self._reasoning = None if marks is None else ReasoningSplitter(marks, reading.opened)
        self._calls = (
            None if form is None or not reading.tools
            else CallSplitter(
                form, reading.tools, reading.most, reading.typed, either=reading.either
            )
        )  # fmt: skip

    @property
    def calls(self) -> int:
        """Calls that are whole; none where the answer was cut off within one."""
        return 0 if self._calls is None or self._calls.half else self._calls.calls

    def push(self, text: str) -> list[Delta]:
        """What is new."""
        if self._reasoning is None:
            return self._content(text)
        found: list[Delta] = []
        for delta in self._reasoning.push(text):
            found += self._content(delta.text) if delta.kind is DeltaKind.CONTENT else [delta]
        return found

    def finish(self, cut: bool = False) -> list[Delta]:
        """The end of the answer; `cut`: at a limit, not by the model."""
        found: list[Delta] = []
        for delta in self._reasoning.finish() if self._reasoning is not None else ():
            found += self._content(delta.text) if delta.kind is DeltaKind.CONTENT else [delta]
        return found + (self._calls.finish(cut) if self._calls is not None else [])

    def _content(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.push(text)
        return [Delta(DeltaKind.CONTENT, text)] if text else []
