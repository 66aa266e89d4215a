"""The formats of the model's tool calls and reasoning, and the format of one answer.

Invariant: decided once per server, from its settings and the model's chat template.  Knows no API.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyweight.errors import ConfigError, nearest
from flyweight.params.structured import StructuredOutputs
from flyweight.server.settings import ServerSettings
from flyweight.text.chat import PLAIN
from flyweight.text.template_reads import list_variables
from flyweight.text.tokenizer import Tokenizer
from flyweight.text.tools.formats import CallFormat, ReasoningMarks, find_format, find_marks
from flyweight.text.tools.grammar import CallGrammar, OfferedTools
from flyweight.text.tools.parser import AnswerFormat
from flyweight.validation.untrusted import shown


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`special`: marks that are special tokens, by their ids; text only shows them if special
    tokens are included.  `plain`: the model has no chat template.  `reads`: the variables that the
    template with tools reads (None: not known).
    """

    calls: CallFormat | None
    reasoning: ReasoningMarks | None
    special: Mapping[str, int]
    plain: bool = False
    reads: frozenset[str] | None = frozenset()

    @classmethod
    def of(cls, settings: ServerSettings, tokenizer: Tokenizer) -> "ChatFormat":
        """Raises `ConfigError`."""
        template = tokenizer.marks.fullest_template
        calls = find_format(settings.tool_call_parser, template)
        marks = find_marks(settings.reasoning_parser, template)
        named = [calls.trigger, "[ARGS]"] if calls else []
        named += [marks.opening, marks.closing] if marks else []
        ids = {mark: tokenizer.encode(mark, add_special=False) for mark in named if mark}
        special = {m: i[0] for m, i in ids.items() if len(i) == 1 and i[0] in tokenizer.special_ids}
        plain = tokenizer.chat_template == PLAIN
        return cls(calls, marks, special, plain, frozenset() if plain else list_variables(template))

    @property
    def shows_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return self.reads is None or "tools" in self.reads

    def make_answer_format(
        self, prompt: str | None, continued: str | None, tools: Collection[str], most: int | None
    ) -> AnswerFormat:
        """The format of the answer to `prompt`, which continues the text `continued`."""
        marks = self.reasoning
        opened = (
            marks is not None and marks.find_open_reasoning(prompt or "", continued) is not None
        )
        calls = self.calls if tools else None
        return AnswerFormat(calls, frozenset(tools), most, marks, opened)

    def apply_constraint(self, reading: AnswerFormat, outputs: StructuredOutputs) -> AnswerFormat:
        """The format of an answer that is constrained from its first token: it has reasoning only
        if the constraint names its marks, which JSON cannot.
        """
        if reading.reasoning is None or self._names_reasoning(reading.reasoning, outputs):
            return reading
        return replace(reading, reasoning=None, opened=False)

    def _names_reasoning(self, marks: ReasoningMarks, outputs: StructuredOutputs) -> bool:
        if outputs.kind in ("json", "json_object"):
            return False
        given = "\n".join(outputs.choice or (outputs.regex or outputs.grammar or "",))
        both = [marks.opening, marks.closing]
        both += [f"<[{self.special[mark]}]>" for mark in both if mark in self.special]
        return any(mark in given.replace("\\", "") for mark in both)

    def needs_special_tokens(self, reading: AnswerFormat) -> bool:
        """Whether parsing the answer needs the text of special tokens."""
        marks = reading.reasoning
        named = {marks.opening, marks.closing} if marks else set()
        if reading.calls is not None:
            named |= {reading.calls.trigger, "[ARGS]"}
        return bool(named & self.special.keys())

    def make_grammar(
        self,
        reading: AnswerFormat,
        offers: Sequence[OfferedTools],
        *,
        demanded: bool,
        thought: int | None = None,
    ) -> str:
        """The grammar of an answer: calls of these tools if `demanded`, after about `thought`
        characters of reasoning at most; otherwise any text with no other calls.
        """
        assert reading.calls is not None
        made = CallGrammar(
            reading.calls, self.special, reading.reasoning, reading.opened, reading.most,
            thought if demanded else None,
        )  # fmt: skip
        return made.require_calls(offers) if demanded else made.allow_calls(offers)

    def make_either_grammar(
        self, reading: AnswerFormat, offers: Sequence[OfferedTools], other: str
    ) -> str:
        """The grammar of an answer that calls these tools or matches `other`."""
        assert reading.calls is not None
        made = CallGrammar(reading.calls, self.special, most=reading.most)
        return made.allow_either(offers, other)


def check_template_defaults(
    given: Mapping[str, Any], reads: Collection[frozenset[str] | None]
) -> None:
    """Raises `ConfigError` if no template reads a variable that is set; `reads` are the variables
    of each template (None: not known).
    """
    seen = {name for one in reads for name in one or ()}
    unused = [name for name in given if name not in seen]
    if unused and None not in reads:
        listed = ", ".join(sorted(seen - {"tools", "documents", "add_generation_prompt"}))
        raise ConfigError(
            f"--default-chat-template-kwargs: {shown(unused[0])} has no effect: the model's chat "
            f"template does not read it{nearest(unused[0], seen)}"
            f"{f'; it reads: {listed}'[:300] if listed else ''}; leave it out"
        )
