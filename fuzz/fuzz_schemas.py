"""Fuzz target: what an answer must look like, checked and made ready for the grammar engine.

The first byte says what the rest is: a JSON schema, open or closed, the same as a tool's arguments
in two forms, or a GBNF or Lark grammar.  The engine's own work is not in it: a server has that done
by a process with a time and a memory of its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from flyweight.errors import RequestError
from flyweight.params.structured import DEEPEST, LONGEST, StructuredOutputs, check
from flyweight.sampling.fields import fields
from flyweight.sampling.sources import embed_schema, list_sources

HOWS = ("open", "closed", "within", "plain", "pythonic", "grammar")
SCHEMAS = (
    '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},'
    ' "required": ["a"], "additionalProperties": false}',
    '{"type": "array", "prefixItems": [{"enum": ["x", 2, null]}], "items": {"type": "boolean"},'
    ' "minItems": 1, "maxItems": 3}',
    '{"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [{"type": "null"},'
    ' {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}}}',
    '{"type": "object", "properties": {"when": {"type": "string", "format": "date-time"},'
    ' "host": {"type": "string", "format": "hostname"}, "to": {"pattern": "^[a-z]+\\\\d{2}$"}}}',
    '{"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.25}',
    '{"type": "object", "patternProperties": {"^x": {"const": "y"}}, "maxProperties": 2}',
)
GRAMMARS = (
    'root ::= "Answer: " (number | "none") "\\n"\nnumber ::= "-"? [0-9]{1,9} ("." [0-9]+)?',
    'root ::= item+ # one\nitem ::= [^\\n\\x41-\\u0042]* "a"? | sum\nsum ::= sum "+" item | .',
    'start: "a" | /b[c-d]*/',
)


class Target:
    COVERED = ("structured.py", "sampling/schema*.py", "sampling/fields.py", "sampling/gbnf*.py",
               "sampling/levels.py", "sampling/patterns.py", "sampling/formats.py",)  # fmt: skip

    def __init__(self, folder: Path) -> None:
        pass

    def seeds(self) -> Iterator[bytes]:
        """Every text with each way to read it that takes it."""
        for how, name in enumerate(HOWS):
            for text in GRAMMARS if name == "grammar" else SCHEMAS:
                seed = bytes([how]) + text.encode()
                if self.execute(seed):
                    yield seed

    def execute(self, data: bytes) -> bool:
        """Whether it is taken."""
        how = HOWS[(data[0] if data else 0) % len(HOWS)]
        try:
            ready(how, data[1:].decode("utf-8", "replace"))
        except RequestError:
            return False
        return True


def ready(how: str, text: str) -> None:
    """Raises `RequestError`."""
    closed = how == "closed"
    if how == "grammar":
        outputs = StructuredOutputs(grammar=text)
    else:
        outputs = StructuredOutputs(json=text, disable_additional_properties=closed)
    check(outputs, LONGEST, DEEPEST)
    if how in ("open", "closed", "grammar"):
        list(list_sources(outputs))
        return
    schema = json.loads(str(outputs.json))
    if not isinstance(schema, dict):
        return
    try:
        embed_schema(schema) if how == "within" else fields(
            schema, plain=how == "plain", keeps=True
        )
    except ValueError as error:  # as a request's tools are read: 1e999 is no number in JSON
        assert "not JSON compliant" in str(error), error
