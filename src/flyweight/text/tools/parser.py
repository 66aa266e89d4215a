"""An answer's reasoning, content and calls, as it grows: one parser for one choice.

Invariant: joined, what `push` and `finish` give does not depend on how the text was cut. Reasoning
is what stands between the marks at the beginning, without the blanks at its ends; without a closing
mark all of it is reasoning.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flyweight.text.tools.calls import CallSplitter
from flyweight.text.tools.deltas import Delta, DeltaKind
from flyweight.text.tools.formats import CallFormat, ReasoningMarks
from flyweight.text.tools.jsontext import BLANKS, skip_blanks
from flyweight.text.tools.xmlcall import Types


class ReasoningSplitter:
    """`opened`: the prompt ended with the opening mark."""

    def __init__(self, marks: ReasoningMarks, opened: bool) -> None:
        self.marks = marks
        self._matched = 0
        self._space: list[str] = []
        self._out: list[Delta] = []
        self._want: Callable[[str, int], int] = self._first if opened else self._begin

    def push(self, text: str) -> list[Delta]:
        self._out = []
        at = 0
        while at < len(text):
            at = self._want(text, at)
        return self._out

    def finish(self) -> list[Delta]:
        self._out = []
        if self._want == self._begin:
            self._leave("")
        elif self._want == self._opening:
            self._leave(self.marks.opening[: self._matched])
        elif self._want == self._closing:
            self._emit_reasoning(self.marks.closing[: self._matched])
        return self._out

    def _begin(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            end = skip_blanks(text, at)
            self._space.append(text[at:end])
            return end
        self._matched, self._want = 0, self._opening
        return at

    def _opening(self, text: str, at: int) -> int:
        opening = self.marks.opening
        if text[at] != opening[self._matched]:
            self._leave(opening[: self._matched])
            return at
        self._matched += 1
        if self._matched == len(opening):
            self._space.clear()
            self._want = self._first
        return at + 1

    def _first(self, text: str, at: int) -> int:
        """Blanks before reasoning are none of it."""
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        self._want = self._inside
        return at

    def _inside(self, text: str, at: int) -> int:
        found = text.find(self.marks.closing[0], at)
        if found < 0:
            self._emit_reasoning(text[at:])
            return len(text)
        self._emit_reasoning(text[at:found])
        self._matched, self._want = 1, self._closing
        return found + 1

    def _closing(self, text: str, at: int) -> int:
        closing = self.marks.closing
        if text[at] != closing[self._matched]:
            self._emit_reasoning(closing[: self._matched])
            self._want = self._inside
            return at
        self._matched += 1
        if self._matched == len(closing):
            self._want = self._gap
        return at + 1

    def _gap(self, text: str, at: int) -> int:
        """Blanks after reasoning are none of the content."""
        if text[at] in BLANKS:
            return skip_blanks(text, at)
        self._want = self._content
        return at

    def _content(self, text: str, at: int) -> int:
        self._out.append(Delta(DeltaKind.CONTENT, text[at:]))
        return len(text)

    def _leave(self, text: str) -> None:
        """There is no reasoning."""
        held = "".join(self._space) + text
        if held:
            self._out.append(Delta(DeltaKind.CONTENT, held))
        self._want = self._content

    def _emit_reasoning(self, text: str) -> None:
        words = text.rstrip(BLANKS)
        if words:
            self._out.append(Delta(DeltaKind.REASONING, "".join(self._space) + words))
            self._space.clear()
        if len(words) < len(text):
            self._space.append(text[len(words) :])


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How an answer is to be read: `tools` by their names, at most `most` calls; `opened`: the
    prompt ended inside reasoning; `typed`: the types of the tools' parameters, for a format that
    does not distinguish strings from numbers; `either`: an answer begins with a call or has none;
    `required`: a constraint allows calls only.
    """

    calls: CallFormat | None = None
    tools: frozenset[str] = frozenset()
    most: int | None = None
    reasoning: ReasoningMarks | None = None
    opened: bool = False
    typed: Mapping[str, Types] = field(default_factory=dict)
    either: bool = False
    required: bool = False

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
                form, reading.tools, reading.most, reading.typed,
                either=reading.either, required=reading.required,
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
