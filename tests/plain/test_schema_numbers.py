"""Ranges and multiples of numbers: whatever a schema lets through another hand finds valid
(`jsonschema`, in decimals), and what cannot be kept to is refused by name.
"""

import json
import random
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
import pytest

from flyweight.errors import RequestError
from flyweight.params.structured import StructuredOutputs
from flyweight.sampling.grammar import Compiler, byte_vocabulary
from flyweight.testing import accepts

ENDS = [0, -0.0, 0.5, -0.5, 1, -1, 1.5, 9.75, 10, 100, 0.1, 0.30000000000000004, 1e-7, 1e-9, 3e-10,
        1e-300, 5e-324, 999.999, 1e6, 123456789.123456, 1e14, 1e15, 1e16, 2**53, 2**53 + 1, 2**63,
        2**63 - 1, 2**64, 10**19, 1e19, 1e300, 1.7976931348623157e308]  # fmt: skip
EACH = [1, 2, 3, 7, 10, 0.5, 0.1, 0.01, 0.3, 2.5, 1.25, 100, 1000, 1e-9, 97, 1e6]


def tried(schema: dict[str, Any], texts: list[str], compiler: Compiler) -> list[str]:
    """The texts that could be answers."""
    beginning = compiler.compile(StructuredOutputs(json=schema))
    found = []
    for text in texts:
        matcher = beginning.copy()
        if matcher.take(text.encode()) == len(text) and matcher.complete:
            found.append(text)
    return found


def valid(schema: dict[str, Any], text: str) -> bool:
    """Said in decimals, without a float."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal, parse_int=Decimal)
    exact["type"] = "number"
    value = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    with localcontext(prec=2000):
        whole = value == value.to_integral_value() or schema["type"] != "integer"
        return whole and jsonschema.Draft202012Validator(exact).is_valid(value)


def spelled(ends: list[Decimal], draw: random.Random) -> list[str]:
    """Numbers at the ends, next to them, between them, in several spellings."""
    values = [Decimal(0), *(Decimal(draw.randint(-2000, 2000)).scaleb(-draw.randint(0, 3))
                            for _ in range(10))]  # fmt: skip
    for end in ends:
        places = -int(end.as_tuple().exponent)
        steps = [Decimal(1).scaleb(-p) for p in (0, 1, 3, 8, 9, 10, 12, max(0, min(30, places)))]
        values += [end, -end, end * 10, end / 10, *(end + s for s in steps),
                   *(end - s for s in steps)]  # fmt: skip
    found = []
    for value in values:
        text = f"{value:f}"[:400]
        found += [text, f"{text}0", f"{text}.0", f"{text}.00", f"-{text}", f"{text}e0",
                  f"{text}e1", f"{text}E-1"]  # fmt: skip
    return [text for text in found if not text.startswith("--")]


def random_range(draw: random.Random) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw.choice(["integer", "number", "number"])}
    for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        for name in names:
            if draw.random() < 0.4:
                near = draw.choice([round(draw.uniform(-20, 20), draw.randint(0, 4)),
                                    draw.randint(-1000, 1000)])  # fmt: skip
                schema[name] = draw.choice([draw.choice(ENDS) * draw.choice([1, -1]), near])
    if draw.random() < 0.3:
        schema["multipleOf"] = draw.choice(EACH)
    return schema


def test_whatever_number_passes_is_valid(at_length: bool) -> None:
    count = 250 * (20 if at_length else 1)
    draw, compiler = random.Random(4), Compiler(byte_vocabulary())
    accepted = passed = 0
    for _ in range(count):
        schema = random_range(draw)
        numbers = [Decimal(repr(value)) for name, value in schema.items() if name != "type"]
        texts = spelled(numbers, draw)
        try:
            found = tried(schema, texts, compiler)
        except RequestError as error:
            assert str(error).startswith("structured_outputs.json")
            continue
        accepted += 1
        passed += len(found)
        assert [text for text in found if not valid(schema, text)] == [], schema
    assert accepted > count / 3 and passed > 5 * accepted


def test_whatever_number_passes_several_ranges_is_valid(at_length: bool) -> None:
    """Ranges that meet (`allOf`), lie next to each other (`anyOf`), or must not meet (`oneOf`)."""
    count = 150 * (20 if at_length else 1)
    draw, compiler = random.Random(7), Compiler(byte_vocabulary())
    accepted = 0
    for _ in range(count):
        ranges = [random_range(draw) for _ in range(2)]
        word, type = draw.choice(["allOf", "anyOf", "oneOf"]), draw.choice(["integer", "number"])
        schema = {"type": type, word: [{**one, "type": type} for one in ranges]}
        ends = [Decimal(repr(v)) for one in ranges for name, v in one.items() if name != "type"]
        texts = spelled(ends, draw)
        try:
            found = tried(schema, texts, compiler)
        except RequestError as error:
            assert str(error).startswith("structured_outputs.json")
            continue
        accepted += 1
        for one in schema[word]:
            one["type"] = "number"
        assert [text for text in found if not valid(schema, text)] == [], schema
    assert accepted > count / 10


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "-0", "0.0"]),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.1", "-0.5"], ["0", "-0", "-0.0"]),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 1}, ["0.6", "0.99"],
         ["0.5", "0.50", "1", "1.0"]),
        ({"minimum": -0.0}, ["0", "3.5"], ["-1"]),
        ({"type": "integer", "exclusiveMaximum": 2**63 - 1}, ["7"], [str(2**63 - 1)]),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["-7", "7"], [str(2**63)]),
        ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, ["0", "99999"], ["-1"]),
        ({"type": "integer", "minimum": 0.5, "maximum": 2.5}, ["1", "2"], ["0", "3"]),
        ({"type": "integer", "exclusiveMinimum": 1, "minimum": 0}, ["2"], ["0", "1"]),
        ({"minimum": -1e300, "maximum": 1e300}, ["1", "-2.5"], ["1" + "0" * 301]),
        ({"minimum": -1.7976931348623157e308}, ["1", "-2.5"], ["1e400"]),
        ({"minimum": 1e-300}, ["1", "0.5"], ["0", "-1"]),
    ],
)  # fmt: skip
def test_ranges(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    schema = {"type": "number", **schema}
    assert [text for text in good if not accepts(schema, text)] == []
    assert [text for text in bad if accepts(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"minimum": 1e19}, "'/minimum': 1e+19; allowed: from -999999999999999 to 999999999999999"),
        ({"maximum": -(10**19)}, "'/maximum'"),
        ({"minimum": 1e300, "maximum": 1e301}, "'/minimum'"),
        ({"minimum": True}, "True is not a number"),
        ({"maximum": "3"}, "is not a number"),
        ({"minimum": 10**400}, "float"),
        ({"maximum": -(10**400)}, "float"),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 1}, "no number"),
        ({"type": "integer", "minimum": 0.5, "maximum": 0.7}, "no number"),
        ({"multipleOf": 0}, "'/multipleOf': 0; allowed: above 0"),
        ({"multipleOf": -2}, "'/multipleOf'"),
        ({"multipleOf": 1e300}, "'/multipleOf'"),
        ({"multipleOf": 1e-30}, "'/multipleOf'"),
        ({"multipleOf": 4294967296}, "'/multipleOf'"),
        ({"const": 2**64 + 1}, "'/const'"),
        ({"const": 2**53 + 1}, "'/const'"),  # would be written as its neighbour
        ({"enum": [1, -(2**63)]}, "'/enum'"),  # would end the process
        ({"const": 123456789.12345679}, "15 digits"),
        ({"const": -1847385498687591.0}, "'/const'"),
        ({"enum": [[2.3e-59]]}, "'/enum'"),
        ({"enum": [{"a": [-(2**70)]}]}, "'/enum'"),
        ({"oneOf": [{"const": 10**16}, {"maximum": 1e20}]}, "'/oneOf/1/maximum'"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=r"structured_outputs\.json") as refusal:
        accepts({"type": "number", **schema} if "enum" not in schema else schema, "1")
    assert words in str(refusal.value)


def test_multiples_of_several_are_kept_to_or_refused() -> None:
    """Whose least common multiple is beyond what is counted with."""
    for many in ([999999937, 999999929, 999999893], [99999, 99991], [0.000000001, 999999937],
                 [2, 3], [0.5, 0.3]):  # fmt: skip
        schema = {"type": "number", "allOf": [{"multipleOf": one} for one in many]}
        try:
            found = [text for text in ("0", "6", "1.5", "3", "0.3") if accepts(schema, text)]
        except RequestError:
            continue
        exact = [Decimal(repr(one)) for one in many]
        assert all(Decimal(text) % one == 0 for text in found for one in exact)


@pytest.mark.parametrize("value", [2**53, -(2**53), 9007199254740991, 999999999999999.0,
                                   123456789012345e22, -1.5e-7, 0.1, 1e22, -0.0])  # fmt: skip
def test_values_are_written_to_the_last_digit(value: float) -> None:
    assert accepts({"const": value}, f"{Decimal(repr(value)).normalize():f}")
