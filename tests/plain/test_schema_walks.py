"""Random texts that a schema lets through, judged by another hand (`jsonschema`): schemas of the
suite, and random ones.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema
import jsonschema_rs
import numpy as np
import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, Matcher, byte_vocabulary

LONGEST = 200
END = 256
# Brackets, quotes and the end are likelier than letters, so that texts end.
WEIGHTS = [6.0 if chr(b) in '"}],:' else 1.0 if b < 127 else 0.05 for b in range(256)] + [8.0]
PATTERNS = ("^a+b?$", "[0-9]", r"^\d{2,3}-\w$", "a.b", "(x|yy)z$", "^[^a-z]{1,3}$", r"\.")
FORMATS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat, "time": time.fromisoformat, "date-time": datetime.fromisoformat,
    "ipv4": ip_address, "ipv6": ip_address, "uuid": UUID, "regex": re.compile,
}  # fmt: skip
NAMES = ("a", "b", "a/b", 'q"', "é", "x_1", "x_2", "\\")


def formats() -> jsonschema.FormatChecker:
    judge = jsonschema.FormatChecker()
    for name, read in FORMATS.items():
        judge.checks(name, (ValueError, re.error))(
            lambda x, read=read: not isinstance(x, str) or bool(read(x))
        )
    return judge


def walk(beginning: Matcher, draw: random.Random, weights: Sequence[float] = WEIGHTS) -> str | None:
    """A text byte by byte, as masks allow; none where it grows too long."""
    matcher, out = beginning.copy(), bytearray()
    while len(out) < LONGEST:
        if matcher.over:
            return out.decode()
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[: END + 1]
        ids = np.flatnonzero(bits).tolist()
        assert ids, f"nothing may follow {bytes(out)!r}"
        (token,) = draw.choices(ids, [weights[i] for i in ids])
        if token == END:
            assert matcher.complete
            return out.decode()
        assert matcher.take([token]) == 1, matcher.broken
        out.append(token)
    return None


def validator(schema: Any) -> jsonschema.protocols.Validator:
    """Of the draft that a schema names, else of the newest."""
    named = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return named(without_nullable(schema), format_checker=formats())


def without_nullable(value: Any) -> Any:
    """A schema where null is in the `type` that OpenAPI's `nullable` adds it to."""
    if isinstance(value, list):
        return [without_nullable(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: without_nullable(one) for name, one in value.items()}
    if found.get("nullable") is True and isinstance(found.get("type"), str | list):
        kinds = found["type"]
        found["type"] = [*(kinds if isinstance(kinds, list) else [kinds]), "null"]
    return found


def judged(schemas: Iterator[Any], walks: int, seed: int) -> tuple[int, int]:
    """Walks under each schema that is accepted; how many schemas and texts there were."""
    compiler, draw = Compiler(byte_vocabulary()), random.Random(seed)
    accepted = texts = 0
    for schema in schemas:
        try:
            matcher = compiler.compile(StructuredOutputs(json=schema))
        except RequestError:
            continue
        accepted += 1
        judge = validator(schema)
        for _ in range(walks):
            text = walk(matcher, draw)
            if text is not None:
                judge.validate(json.loads(text))
                texts += 1
    return accepted, texts


def chosen(draw: random.Random, chance: float, **options: Any) -> dict[str, Any]:
    """Each option with a chance of its own."""
    return {name: value for name, value in options.items() if draw.random() < chance}


def random_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    low, high = draw.randint(-50, 50), draw.randint(51, 5000)
    leaves: list[dict[str, Any]] = [
        {"type": "integer"} | chosen(draw, 0.5, minimum=low, maximum=high)
        | chosen(draw, 0.3, multipleOf=draw.choice([2, 3, 7])),
        {"type": "number"} | chosen(draw, 0.5, exclusiveMinimum=-1.5, exclusiveMaximum=9.75),
        {"type": "string"} | chosen(draw, 0.6, minLength=draw.randint(0, 3), maxLength=5),
        {"type": "string", "pattern": draw.choice(PATTERNS)} | chosen(draw, 0.5, maxLength=8),
        {"enum": draw.sample([None, True, -1.5, "a", 'a"b', "é\n", [1, 2], {"x": 1}], 3)},
        {"type": "string", "format": draw.choice([*FORMATS, "hostname", "email"])},
        {"type": draw.choice(["boolean", "null", ["null", "integer"]])},
    ]  # fmt: skip
    if depth > 2 or draw.random() < 0.5:
        return draw.choice(leaves)
    inner = [random_schema(draw, depth + 1) for _ in range(4)]
    names = draw.sample(NAMES, draw.randint(0, 4))
    items = chosen(draw, 0.6, items=inner[0], minItems=draw.randint(0, 2), maxItems=3)
    fields = chosen(draw, 0.5, additionalProperties=draw.choice([False, inner[1]]))
    fields |= chosen(draw, 0.2, patternProperties={"^x_": inner[2]}, minProperties=2)
    fields |= chosen(draw, 0.3, maxProperties=3, required=[*names, "zz"][: draw.randint(0, 3)])
    return draw.choice([
        {"type": "array"} | items | chosen(draw, 0.3, prefixItems=inner[2:]),
        {"type": "object", "properties": dict.fromkeys(names, inner[3])} | fields,
        {draw.choice(["anyOf", "oneOf", "allOf"]): inner[:2]},
    ])  # fmt: skip


def test_texts_under_the_suites_schemas_are_valid(data: Callable[[str], Path]) -> None:
    root = data("schemas-json-schema-test-suite/draft2020-12")
    paths = [p for p in sorted(root.rglob("*.json")) if "\\\\p{" not in p.read_text("utf-8")]
    cases = (case["schema"] for p in paths for case in json.loads(p.read_text("utf-8")))
    accepted, texts = judged(cases, walks=4, seed=1)
    assert accepted > 150 and texts > 3 * accepted


def test_texts_under_random_schemas_are_valid(at_length: bool) -> None:
    count = 300 * (25 if at_length else 1)
    draw = random.Random(2)
    accepted, texts = judged((random_schema(draw) for _ in range(count)), walks=5, seed=3)
    assert accepted > count / 3 and texts > 3 * accepted


@pytest.mark.parametrize(
    "name", ["uri-reference", "regex", "json-pointer", "relative-json-pointer", "date", "hostname"]
)
def test_texts_of_formats_are_valid(name: str) -> None:
    """Judged by another library, too."""
    schema = {"type": "string", "format": name}
    matcher = Compiler(byte_vocabulary()).compile(StructuredOutputs(json=schema))
    judge, draw = (
        jsonschema_rs.Draft202012Validator(schema, validate_formats=True),
        random.Random(6),
    )
    weights = [*WEIGHTS]
    for mark in b"()[]{}|\\/%#?@*+-^$":
        weights[mark] = 4.0
    texts = [text for text in (walk(matcher, draw, weights) for _ in range(200)) if text]
    assert len(texts) > 150
    assert [text for text in texts if not judge.is_valid(json.loads(text))] == []
