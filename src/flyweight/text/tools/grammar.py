"""A grammar of the answers that call tools: in the model's own format, arguments as their schemas
say, as JSON or as a rule for each parameter.

Invariant: what the grammar takes, the format's parser reads as calls of the tools that are offered,
each parameter once, and of nothing else. Written in Lark as llguidance reads it, which is not
needed to write it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flyweight.text.tools.formats import CallFormat, ReasoningMarks
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


PIECE = 64  # characters
MOST_CALLS = 16  # in one answer, where calls are demanded: it is to come to an end
_ANGLED = re.compile(r"<[^<>\s]+>")


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """A tool by its name, and what its arguments are as a Lark grammar says it, or (where a form
    does not write them as JSON) as its `fields` say.
    """

    name: str
    arguments: str = ""
    fields: tuple[CallField, ...] = ()


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Grammars of one format.  `special`: ids of the marks that are special tokens; `marks`: of
    reasoning, which may come first, and has begun already where it is `opened`; at most `most`
    calls, after at most about `thought` characters of reasoning.
    """

    form: CallFormat
    special: Mapping[str, int]
    marks: ReasoningMarks | None = None
    opened: bool = False
    most: int | None = None
    thought: int | None = None

    def require_calls(self, offers: Sequence[OfferedTools]) -> str:
        """Answers that are calls."""
        return self._write_rules(f"start: {self._thought}({self._calls})", offers)

    def allow_either(self, offers: Sequence[OfferedTools], other: str) -> str:
        """Answers that are calls or of the `other` form, from their first character on."""
        return self._write_rules(f"start: {self._calls} | form\nform: {other}", offers, split=True)

    def allow_calls(self, offers: Sequence[OfferedTools]) -> str:
        """Answers of any kind; from where a call begins it is one of these."""
        count = MOST_CALLS if self.most is None else self.most
        if self.form.bare:
            first = "[{" if self.form.listed else "{"
            trigger = "trigger? " if self.form.trigger else ""
            start = f"start: {self._thought}(OTHER? | {trigger}{self._write_section(count)})"
            other = rf"OTHER: /[^ \t\r\n{re.escape(first)}](.|\n)*/{self._unthought}"
            return self._write_rules(f"{start}\n{other}", offers)
        section = self._write_section(1 if self._repeats else count)
        call = f"lead {section}"
        later = f"({call})*" if self.most is None else _write_more(call, self.most)
        lead = _write_until("lead", "TEXT", self._mark(self.form.trigger))
        if self.marks is None or self.opened:
            calls = f"TEXT | lead {section} {later} TEXT"
            return self._write_rules(f"start: {self._thought}({calls})\n{lead}", offers)
        calls = f"FIRST | head {section} {later} TEXT"
        first = rf"FIRST: /(.|\n)*/{self._unthought}"
        head = _write_until("head", "FIRST", self._mark(self.form.trigger))
        start = f"start: {self._thought}({calls})"
        return self._write_rules(f"{start}\n{lead}\n{head}\n{first}", offers)

    @property
    def _calls(self) -> str:
        """Calls and nothing else."""
        count = MOST_CALLS if self.most is None else min(self.most, MOST_CALLS)
        form = self.form
        if not self._repeats:
            return (
                self._write_section(count) if form.bare else f"trigger {self._write_section(count)}"
            )
        call = f"trigger {self._write_section(1)}"
        return f"{call} {_write_more(f'GAP {call}' if form.closer else call, count)}"

    @property
    def _repeats(self) -> bool:
        """Whether each call has a trigger of its own."""
        return bool(self.form.closer) or self.form.heads

    @property
    def _thought(self) -> str:
        if self.marks is None:
            return ""
        gap = r"/[ \t\r\n]{0,8}/"
        return (
            f"inner {gap} " if self.opened else f"({self._mark(self.marks.opening)} inner {gap})? "
        )

    @property
    def _unthought(self) -> str:
        """What begins as reasoning does is no other text."""
        if self.marks is None or self.opened:
            return ""
        return rf" & ~/{re.escape(self.marks.opening)}(.|\n)*/"

    def _write_section(self, count: int) -> str:
        """What follows a trigger."""
        form = self.form
        if form.closer:
            return f"GAP one GAP {self._mark(form.closer)}"
        if form.heads or (form.bare and count == 1 and not form.pythonic):
            return "one"
        separator = '", "' if form.listed else json.dumps(f"{form.separator} ")
        several = f"one {_write_more(f'{separator} one', count)}"
        if not form.listed:
            return several
        if form.pythonic:
            return f'"[" {several} "]"'
        # SentencePiece's models were taught a space after a special token.
        return f'(one | "[" {several} "]")' if form.bare else rf'/ ?\[/ {several} "]"'

    def _write_rules(
        self, start: str, offers: Sequence[OfferedTools], *, split: bool = False
    ) -> str:
        """`split`: a call's head is cut into the words that other JSON has, as the lexer takes the
        longest one and never goes back.
        """
        lines = ["%llguidance {}", start, r"TEXT: /(.|\n)*/", r'GAP: "\n"']
        if self.form.trigger:
            lines.append(f"trigger: {self._mark(self.form.trigger)}")
        if self.marks is not None:
            lines += self._write_reasoning(self.marks.closing)
        lines.append(f"one: {' | '.join(f'one_{i}' for i in range(len(offers)))}")
        for i, offer in enumerate(offers):
            lines += self._write_call(i, offer, split)
        return "\n".join(lines) + "\n"

    def _write_reasoning(self, closing: str) -> list[str]:
        """Reasoning up to the end of it; counted by pieces, which keeps the lexer small."""
        mark = self._mark(closing)
        if self.thought is None:
            return [_write_until("inner", "TEXT", mark)]
        pieces = f"piece{{0,{max(1, self.thought // PIECE)}}}"
        if closing in self.special:
            return [f"inner: {pieces} {mark}", rf"piece: /(.|\n){{1,{PIECE}}}/"]
        # The longest match is taken: what begins like the mark and is none is a piece of its own.
        begun = " | ".join(json.dumps(closing[:count]) for count in range(1, len(closing)))
        plain = rf"/[^{re.escape(closing[0])}]{{1,{PIECE}}}/"
        return [f"inner: {pieces} {mark}", "piece: PLAIN | BEGUN", f"PLAIN: {plain}",
                f"BEGUN: {begun}"]  # fmt: skip

    def _write_call(self, i: int, offer: OfferedTools, split: bool) -> list[str]:
        name = offer.name
        if self.form.tagged:
            return write_tagged_rules(i, name, offer.fields)
        if self.form.pythonic:
            return write_python_rules(i, name, offer.fields)
        arguments = f"arguments_{i}: {offer.arguments}"
        if self.form.heads:
            head = f"{json.dumps(name)} {self._mark('[ARGS]')}"
            return [f"one_{i}: {head} arguments_{i}", arguments]
        words = ("{", '"name"', ": ", json.dumps(name), ", ", f'"{self.form.arguments}"', ": ")
        head = " ".join(map(json.dumps, words)) if split else json.dumps("".join(words))
        return [f'one_{i}: {head} arguments_{i} "}}"', arguments]

    def _mark(self, mark: str) -> str:
        """A mark as a token where it is a special one, else as text."""
        if mark not in self.special:
            return json.dumps(mark)
        return mark if _ANGLED.fullmatch(mark) else f"<[{self.special[mark]}]>"


def _write_until(rule: str, text: str, mark: str) -> str:
    """Text that ends with the first `mark`; no text holds a token."""
    return f"{rule}[lazy]: {text} {mark}" if mark.startswith('"') else f"{rule}: {text} {mark}"


def _write_more(rule: str, count: int) -> str:
    """What may follow the first of `count`."""
    return f"({rule}){{0,{count - 1}}}" if count > 1 else ""
