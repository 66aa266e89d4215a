"""Tools and tool choices as OpenAI's bodies have them, and the constraints they put on an answer.

Invariant: the tools of `Tools` have distinct names, and schemas of bounded size and depth; its
choice is one of them.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from flyweight.errors import RequestError, field_names, nearest
from flyweight.params.structured import LONGEST, StructuredOutputs
from flyweight.sampling.fields import fields
from flyweight.sampling.schema_keywords import list_ignored_keywords
from flyweight.sampling.sources import embed_constraint, embed_schema
from flyweight.server.apis.body import mark_limit
from flyweight.server.apis.fields import Fields
from flyweight.server.chat_format import ChatFormat
from flyweight.server.constraints.validator import map_constraint_names
from flyweight.server.settings import MOST_TOOLS, ServerSettings
from flyweight.text.tools.envelope import KEYS
from flyweight.text.tools.formats import CallFormat
from flyweight.text.tools.grammar import OfferedTools
from flyweight.text.tools.parser import AnswerFormat
from flyweight.validation.untrusted import shown

LETTERS = 3  # of a token, few enough that reasoning leaves room for a call
TOOLS = Field(None, max_length=MOST_TOOLS, json_schema_extra=mark_limit("max_tools"))
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]


class Function(Fields):
    """What a tool does, and a JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    type: Literal["function"]
    function: Function


class NamedTool(Fields):
    name: ToolName


class NamedChoice(Fields):
    """One tool that must be called."""

    type: Literal["function"]
    function: NamedTool


class AllowedTools(Fields):
    """The tools that may be called (`auto`), or one of which must be (`required`)."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1, max_length=MOST_TOOLS)


class AllowedChoice(Fields):
    """Some of the tools: the model is shown all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Choice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


def demands_call(choice: Choice | None) -> bool:
    """Whether a call is required."""
    if isinstance(choice, AllowedChoice):
        return choice.allowed_tools.mode == "required"
    return choice == "required" or isinstance(choice, NamedChoice)


class Tools:
    """The tools that the model is shown (`all`), those that it may call (`allowed`), and those one
    of which it must call (`required`), if any.
    """

    def __init__(
        self,
        given: Sequence[Tool] | None,
        choice: Choice | None,
        parallel: bool | None,
        settings: ServerSettings,
    ) -> None:
        """Raises `RequestError`."""
        offered = [] if choice == "none" else list(given or ())
        most = settings.max_tools
        if len(offered) > most:
            raise RequestError(f": {len(offered)} tools", "tools", allowed=f"at most {most}")
        self.share = settings.thinking_percent
        self.all = {tool.function.name: tool.function for tool in offered}
        if len(self.all) < len(offered):
            names = [tool.function.name for tool in offered]
            twice = next(name for name in names if names.count(name) > 1)
            raise RequestError(f": the name {shown(twice)} is used twice", "tools")
        for i, tool in enumerate(offered):
            _check_schema_size(f"tools.{i}.function.parameters", tool.function.parameters, settings)
        self.declared = [tool.model_dump(exclude_unset=True) for tool in offered]
        self.allowed = self._find_allowed(choice)
        self.required = self._find_required(choice)
        named = isinstance(choice, NamedChoice)
        self.most = 1 if named or parallel is False else None

    def _find_required(self, choice: Choice | None) -> list[Function]:
        if choice in (None, "none", "auto"):
            return []
        if not self.all:
            raise RequestError("requires a tool call, but there are no tools", "tool_choice")
        if isinstance(choice, NamedChoice):
            return [self._find_tool(choice.function.name)]
        may_be_none = isinstance(choice, AllowedChoice) and choice.allowed_tools.mode == "auto"
        return [] if may_be_none else list(self.allowed.values())

    def _find_allowed(self, choice: Choice | None) -> dict[str, Function]:
        if not isinstance(choice, AllowedChoice):
            return self.all
        named = [one.function.name for one in choice.allowed_tools.tools]
        return {name: self._find_tool(name) for name in named}

    def _find_tool(self, name: str) -> Function:
        if name not in self.all:
            known = ", ".join(list(self.all)[:8])
            raise RequestError(
                f": there is no tool {shown(name)}{nearest(name, self.all)}; declared: "
                f"{shown(known, 200)}",
                "tool_choice",
            )
        return self.all[name]

    @property
    def _offered(self) -> list[Function]:
        return self.required or list(self.allowed.values())

    @property
    def ignored_keywords(self) -> list[str]:
        """Names in the enforced schemas that have no effect."""
        kept = [one.parameters for one in self._offered if self.required or one.strict]
        return [name for schema in kept for name in list_ignored_keywords(schema)]

    def list_schemas(self) -> Iterator[tuple[str, StructuredOutputs]]:
        """Each tool's schema, with its path: to find the one that does not compile."""
        places = {name: i for i, name in enumerate(self.all)}
        for one in self._offered:
            schema = {"type": "object", **(one.parameters or {})}
            path = f"tools.{places[one.name]}.function.parameters"
            yield path, StructuredOutputs(json=schema)

    def make_constraint(
        self, chat_format: ChatFormat, reading: AnswerFormat, left: int | None = None
    ) -> StructuredOutputs | None:
        """The answer's constraint: a call if one is required, arguments that satisfy the schemas of
        strict tools, and only allowed tools.  A share of `left` tokens may be reasoning before a
        required call.  Raises `RequestError`.
        """
        offered = self._offered
        strict = any(function.strict for function in offered)
        if not self.required and not strict and self.allowed is self.all:
            return None
        if reading.calls is None:
            raise RequestError(
                ": tool calls are off on this server (--tool-call-parser none)",
                "tool_choice" if self.required else "tools",
            )
        thought = None if left is None else left * LETTERS * self.share // 100
        offers, demanded = self._make_offers(reading.calls), bool(self.required)
        return _make_constraint(
            chat_format.make_grammar(reading, offers, demanded=demanded, thought=thought)
        )

    def may_call_instead(self, form: StructuredOutputs, reading: AnswerFormat) -> bool:
        """Whether the answer may be calls instead of this format.  A format that is not JSON has
        its own place for calls.
        """
        return bool(reading.calls and self.all) and form.kind in ("json", "json_object")

    def make_either_constraint(
        self, chat_format: ChatFormat, reading: AnswerFormat, form: StructuredOutputs
    ) -> StructuredOutputs | None:
        """The constraint of an answer that may be calls or JSON of this format; None if the format
        itself allows calls.  Raises `RequestError`.
        """
        assert reading.calls is not None
        if reading.calls.bare and not _excludes_calls(form):
            if form.kind == "json_object" and not any(one.strict for one in self._offered):
                return None
            raise RequestError(
                ": this model writes calls as plain JSON, which cannot be distinguished "
                "from the requested JSON; allowed with tools: the schema of an object that "
                f"requires another field than {', '.join(sorted(KEYS))}; or leave one of "
                "them out",
                "tools",
            )
        return _make_constraint(
            chat_format.make_either_grammar(
                reading, self._make_offers(reading.calls), embed_constraint(form)
            )
        )

    def _make_offers(self, form: CallFormat) -> list[OfferedTools]:
        """The tools that may be called, as a grammar has them.  Raises `RequestError`."""
        places = {name: i for i, name in enumerate(self.all)}
        demanded = bool(self.required)
        return [
            _make_offer(one, form, demanded or bool(one.strict), places[one.name])
            for one in self._offered
        ]


def _make_constraint(made: str) -> StructuredOutputs:
    """The constraint of a grammar of calls.  Raises `RequestError` if it is too long."""
    if len(made) > LONGEST:
        raise RequestError(
            f": the grammar of the calls has {len(made)} characters",
            "tools",
            allowed=f"at most {LONGEST}; declare fewer, or name one in tool_choice",
        )
    return StructuredOutputs(grammar=made)


def _excludes_calls(form: StructuredOutputs) -> bool:
    """Whether no answer of this format can be read as a call in bare JSON: it requires a field that
    calls do not have.
    """
    schema = {} if form.json is None else json.loads(str(form.json))
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    required = schema.get("required")
    return isinstance(required, list) and any(name not in KEYS for name in required)


def _make_offer(function: Function, form: CallFormat, keeps: bool, i: int) -> OfferedTools:
    """A tool and the schema of its arguments as a grammar has them; without `keeps`, any arguments.
    A tool without parameters has no arguments.
    """
    place = f"tools.{i}.function.parameters"
    schema = {"type": "object", "properties": {}, **(function.parameters or {})}
    if keeps and schema["type"] != "object":
        raise RequestError(
            "is not valid",
            f"{place}.type",
            value=schema["type"],
            allowed="'object'",
            code="bad_constraint",
        )
    try:
        with field_names(map_constraint_names(place)):
            if form.tagged or form.pythonic:
                found = fields(schema, plain=form.tagged, keeps=keeps)
                return OfferedTools(function.name, fields=found)
            return OfferedTools(
                function.name, embed_schema(schema if keeps else {"type": "object"})
            )
    except ValueError:
        problem = "has a number that no float can hold"
        raise RequestError(problem, place, code="bad_constraint") from None


def _check_schema_size(place: str, schema: dict[str, Any] | None, settings: ServerSettings) -> None:
    """Raises `RequestError` where a schema is too long or too deep."""
    deepest, most = _measure_depth(schema), settings.max_schema_depth
    if deepest > most:
        raise RequestError(f"is nested {deepest} deep", place, allowed=f"at most {most}")
    size, most = len(json.dumps(schema, ensure_ascii=False)), settings.max_schema_bytes
    if size > most:
        raise RequestError(f"has {size} characters", place, allowed=f"at most {most}")


def _measure_depth(value: object) -> int:
    """Levels of objects and lists, without recursion."""
    level: list[object] = [value]
    depth = 0
    while level:
        inside: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inside += one.values()
            elif isinstance(one, list):
                inside += one
        depth += any(isinstance(one, dict | list) for one in level)
        level = inside
    return depth
