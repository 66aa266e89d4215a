"""Output formats as bodies request them: OpenAI's `response_format`, vLLM's
`structured_outputs`.

Invariant: what is requested is one `StructuredOutputs`, none, or a refusal in the client's own
words.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from flyweight.errors import RequestError, field_names
from flyweight.params.structured import EXACT, LONGEST, MOST_CHOICES, NAME, StructuredOutputs
from flyweight.sampling.schema_keywords import list_ignored_keywords
from flyweight.server.apis.fields import Fields
from flyweight.server.constraints.validator import map_constraint_names

Source = Annotated[str, Field(max_length=LONGEST)]
Strictness = Annotated[
    Literal["exact", "validate"] | None,
    Field(
        description="With keywords that no grammar enforces, exact refuses a schema; validate "
        "checks the finished answer, and generates it again where it is not valid."
    ),
]
KINDS = {"text": "TextFormat", "json_object": "ObjectFormat", "json_schema": "SchemaFormat"}
FLAT = "FlatFormat"


class TextFormat(Fields):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(Fields):
    """A JSON object; llama-server's clients put a schema here."""

    type: Literal["json_object"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class NamedSchema(Fields):
    """A JSON schema; OpenAI's clients name it."""

    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="Has no effect: schemas are kept to always.")
    strictness: Strictness = None


class SchemaFormat(Fields):
    """JSON that satisfies a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatFormat(Fields):
    """The same as llama-server's clients write it: the schema without an object around it."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


Format = TextFormat | ObjectFormat | SchemaFormat | FlatFormat


def _kind(given: Any) -> str | None:
    if not isinstance(given, dict):
        return type(given).__name__ if isinstance(given, Format) else None
    kind = given.get("type")
    schemas = [given.get(name) is not None for name in ("schema", "json_schema")]
    if kind == "json_schema" and schemas == [True, False]:
        return FLAT
    return KINDS.get(kind) if isinstance(kind, str) else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("TextFormat")]
    | Annotated[ObjectFormat, Tag("ObjectFormat")]
    | Annotated[SchemaFormat, Tag("SchemaFormat")]
    | Annotated[FlatFormat, Tag(FLAT)],
    Discriminator(
        _kind,
        custom_error_type="unknown_format",
        custom_error_message="an object whose type is 'text', 'json_object' or 'json_schema'",
    ),
]


class StructuredFields(Fields):
    """Exactly one of json, json_object, regex, choice and grammar."""

    schema_: dict[str, Any] | Source | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Source | None = None
    choice: list[str] | None = Field(None, min_length=1, max_length=MOST_CHOICES)
    grammar: Source | None = Field(None, description="GBNF, or Lark as llguidance reads it.")
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Annotated[str, Field(max_length=256)] | None = None
    strictness: Strictness = None

    def outputs(self) -> StructuredOutputs:
        """Raises `RequestError`."""
        given = self.model_dump(by_alias=True, exclude_none=True)
        return StructuredOutputs(**given)


def constraint(
    format: Format | None,
    structured: StructuredFields | None,
    grammar: str | None = None,
) -> StructuredOutputs | None:
    """What an answer must satisfy.  Raises `RequestError`."""
    if grammar:
        other = "" if format is None or isinstance(format, TextFormat) else "response_format"
        other = NAME if structured is not None else other
        if other:
            raise RequestError(f"and {other} exclude each other; leave one of them out", "grammar")
        return grammar_in("grammar", grammar)
    if structured is not None:
        if format is not None and not isinstance(format, TextFormat):
            raise RequestError(
                f"and {NAME} exclude each other; leave one of them out", "response_format"
            )
        return structured.outputs()
    if isinstance(format, SchemaFormat):
        schema_ = format.json_schema
        return schema_in(place_of(format), schema_.schema_, schema_.strictness or EXACT)
    if isinstance(format, ObjectFormat | FlatFormat):
        if format.schema_ is None:
            return StructuredOutputs(json_object=True)
        return schema_in(place_of(format), format.schema_)
    return None


def schema_in(
    place: str, schema: dict[str, Any] | str, strictness: Literal["exact", "validate"] = EXACT
) -> StructuredOutputs:
    """A schema that an API has in a field of its own.  Raises `RequestError`."""
    with field_names(map_constraint_names(place)):
        return StructuredOutputs(json=schema, strictness=strictness)


def grammar_in(place: str, grammar: str) -> StructuredOutputs:
    """The same of a grammar."""
    with field_names(map_constraint_names(place)):
        return StructuredOutputs(grammar=grammar)


def place_of(format: Format | None) -> str:
    """Where a body has its schema, if that is not `structured_outputs`."""
    if isinstance(format, SchemaFormat):
        return "response_format.json_schema.schema"
    return "response_format.schema" if isinstance(format, ObjectFormat | FlatFormat) else ""


def form_keywords(form: StructuredOutputs | None) -> list[str]:
    """Names in a form's JSON schema that have no effect."""
    return (
        []
        if form is None or form.json is None
        else list_ignored_keywords(json.loads(str(form.json)))
    )
