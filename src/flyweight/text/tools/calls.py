"""Calls of tools in a growing answer, separated from its content.

Invariant: every character of the answer is content, or part of a call, or a mark or blank around
calls.  What looks like a call and is none is content: the scan goes on where it went wrong and
never looks back.
"""

from collections.abc import Callable, Mapping

from flyweight.text.tools.deltas import Delta, DeltaKind
from flyweight.text.tools.envelope import CallReader, Envelope, MistralHeader
from flyweight.text.tools.formats import CallFormat
from flyweight.text.tools.jsontext import BLANKS, MalformedJson, skip_blanks
from flyweight.text.tools.pythoncall import PythonCall, can_begin
from flyweight.text.tools.xmlcall import Types, XmlCall


class CallSplitter:
    """`names` are the tools there are, `typed` the types of their parameters; calls beyond `most`
    are left out; where it is `either`, what does not begin with a call has none; where calls are
    `required`, a constraint allows no content.
    """

    def __init__(
        self,
        form: CallFormat,
        names: frozenset[str],
        most: int | None = None,
        typed: Mapping[str, Types] | None = None,
        *,
        either: bool = False,
        required: bool = False,
    ) -> None:
        self.form, self.names, self.most, self.typed = form, names, most, typed or {}
        self.either, self.required = either, required
        self.calls = 0  # that are whole
        self.half = False  # whether the answer was cut off within one
        self._index = 0  # of the next call
        self._begun = False  # whether its name was returned
        self._reader: CallReader = Envelope(names)
        self._in_list = False
        self._matched = 0  # characters of the trigger or the closer
        self._space: list[str] = []  # blanks that are content where content follows
        self._raw: list[str] = []  # since the last content or whole call
        self._out: list[Delta] = []
        self._want: Callable[[str, int], int] = self._content
        if form.bare or either:
            self._want = self._begin

    def push(self, text: str) -> list[Delta]:
        """What is new."""
        self._out = []
        at = 0
        while at < len(text):
            at = self._want(text, at)
        return self._out

    def finish(self, cut: bool) -> list[Delta]:
        """Ends the answer.  An unfinished call stays as it is where the answer was `cut` off, and
        becomes content where the model ended it there.  A cut call without a name is dropped if it
        is required, or follows a trigger or another call, so that its markup is never content.
        """
        self._out = []
        if cut and self.required and not self._begun:
            self._space.clear()
            self._raw.clear()
        elif self._want == self._trigger:
            if not (cut and self._matched > 1):  # one character of a trigger may be text
                self._emit_content(self.form.trigger[: self._matched])
        elif cut and self._begun:
            self.half = True
            self._space.clear()
        elif cut and self._want in (self._between, self._closer):
            self._raw.clear()
        elif cut and self._want != self._content and (self.calls or self._triggered):
            self._raw.clear()  # a call, cut off before its name
        else:
            self._fail(0)
        if self._space and not self.calls:
            self._out.append(Delta(DeltaKind.CONTENT, "".join(self._space)))
        return self._out

    @property
    def _triggered(self) -> bool:
        return bool(self.form.trigger) and self._raw[:1] == [self.form.trigger]

    # --- content ---

    def _begin(self, text: str, at: int) -> int:
        """The beginning of an answer that may be a call itself, or is one or has none."""
        if text[at] in BLANKS:
            return self._skip(text, at, self._space)
        if self.either and self.form.trigger.startswith(text[at]):
            self._matched, self._want = 1, self._trigger
            return at + 1
        bare = text[at] == "{" or (text[at] == "[" and self.form.listed)
        self._want = self._opening if bare and self.form.bare else self._content
        return at

    def _content(self, text: str, at: int) -> int:
        mark = "" if self.either and not self.calls else self.form.trigger[:1]
        found = text.find(mark, at) if mark else -1
        if found < 0:
            self._emit_content(text[at:])
            return len(text)
        self._emit_content(text[at:found])
        self._matched, self._want = 1, self._trigger
        return found + 1

    def _trigger(self, text: str, at: int) -> int:
        trigger = self.form.trigger
        if text[at] != trigger[self._matched]:
            self._emit_content(trigger[: self._matched])
            self._want = self._content
            return at
        self._matched += 1
        if self._matched == len(trigger):
            self._raw.append(trigger)
            self._want = self._opening
        return at + 1

    # --- calls ---

    def _opening(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return self._skip(text, at, self._raw)
        self._in_list = text[at] == "[" and self.form.listed
        self._want = self._before
        if self._in_list:
            self._raw.append("[")
        return at + self._in_list

    def _before(self, text: str, at: int) -> int:
        if text[at] in BLANKS:
            return self._skip(text, at, self._raw)
        if text[at] == "{":
            self._reader = Envelope(self.names)
        elif self.form.headed and not self._in_list:
            self._reader = MistralHeader(self.names)
        elif self.form.tagged and text[at] == "<":
            self._reader = XmlCall(self.names, self.typed)
        elif self.form.pythonic and self._in_list and can_begin(text, at):
            self._reader = PythonCall(self.names)
        else:
            return self._fail(at)
        self._want = self._call
        return at

    def _call(self, text: str, at: int) -> int:
        try:
            end = self._reader.feed(text, at)
        except MalformedJson as bad:
            self._raw.append(text[at : bad.at])
            self._emit_call()
            return self._fail(bad.at)
        self._raw.append(text[at:end])
        self._emit_call()
        if self._reader.done:
            self._whole()
        return end

    def _between(self, text: str, at: int) -> int:
        """After a call."""
        c, form = text[at], self.form
        if c in BLANKS:
            return self._skip(text, at, self._raw)
        if self._in_list and c == "]":
            self._in_list = False
            self._raw.clear()
            self._want = self._content
        elif c == ("," if self._in_list else form.separator):
            self._raw.append(c)
            self._want = self._before
        elif self._in_list or not form.closer:
            return self._fail(at)
        elif c == "{":
            self._want = self._before
            return at
        else:
            self._matched, self._want = 0, self._closer
            return at
        return at + 1

    def _closer(self, text: str, at: int) -> int:
        closer, trigger = self.form.closer, self.form.trigger
        if text[at] != closer[self._matched]:
            begun = closer[: self._matched]
            if self._matched and trigger.startswith(begun):  # another call, without a closer
                del self._raw[-self._matched :]
                self._fail(at)
                self._want = self._trigger
                return at
            return self._fail(at)
        self._raw.append(text[at])
        self._matched += 1
        if self._matched == len(closer):
            self._raw.clear()
            self._want = self._content
        return at + 1

    # --- what comes of it ---

    def _emit_content(self, text: str) -> None:
        """Content; blanks at its end wait for more."""
        words = text.rstrip(BLANKS)
        if words:
            self._out.append(Delta(DeltaKind.CONTENT, "".join(self._space) + words))
            self._space.clear()
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def _emit_call(self) -> None:
        """What is new of the call that is being read."""
        arguments = self._reader.take()
        if not arguments or (self.most is not None and self.calls >= self.most):
            return
        if not self._begun:
            self._begun = True
            self._out.append(Delta(DeltaKind.NAME, self._reader.name, self._index))
        self._out.append(Delta(DeltaKind.ARGUMENTS, arguments, self._index))

    def _whole(self) -> None:
        self.calls += 1
        if self._begun:
            self._out.append(Delta(DeltaKind.WHOLE, "", self._index))
            self._index += 1
            self._begun = False
        self._space.clear()
        self._raw.clear()
        self._want = self._between

    def _fail(self, at: int) -> int:
        """What was taken for a call is content."""
        if self._begun:
            self._out.append(Delta(DeltaKind.VOID, "", self._index))
            self._index += 1
            self._begun = False
        self._emit_content("".join(self._raw))
        self._raw.clear()
        self._want = self._content
        return at

    def _skip(self, text: str, at: int, into: list[str]) -> int:
        end = skip_blanks(text, at)
        into.append(text[at:end])
        return end
