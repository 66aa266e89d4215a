"""Reasoning at the beginning of an answer, told from what follows it.

Invariant: reasoning is what stands between the marks, without the blanks at its ends; nothing else
is changed, but for the blanks after it.  Without a closing mark all of it is reasoning.
"""

from collections.abc import Callable

from flyweight.text.tools.deltas import Delta, DeltaKind
from flyweight.text.tools.formats import ReasoningMarks
from flyweight.text.tools.jsontext import BLANKS, skip_blanks


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
