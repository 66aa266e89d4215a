"""Keywords of a schema that are given something else than JSON Schema has there."""

from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.testing import accepts

NEVER: list[Any] = [None, True, "2", [2], -1, 1.5, 1e30, 2**32]
SIZED = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]


@pytest.mark.parametrize("name", SIZED)
def test_sizes_are_whole_numbers(name: str) -> None:
    for value in NEVER:
        with pytest.raises(RequestError, match=f"at '/items/{name}': .*whole numbers from 0"):
            accepts({"items": {name: value}}, "[]")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"required": 5}, "/required"),
        ({"required": "ab"}, "/required"),
        ({"required": [1]}, "/required"),
        ({"required": [["a"]]}, "/required"),
        ({"properties": {"x": {"enum": 5}}}, "/properties/x/enum"),
        ({"properties": {"x": {"enum": "abc"}}}, "/properties/x/enum"),
        ({"properties": {"x": {"enum": {}}}}, "/properties/x/enum"),
    ],
)
def test_lists_are_lists(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError, match=f"at '{place}': .*; allowed: a list of"):
        accepts(schema, "{}")


def test_a_whole_number_may_be_spelled_with_a_point() -> None:
    assert accepts({"type": "string", "minLength": 2.0, "maxLength": 2.0}, '"ab"')
    assert not accepts({"type": "string", "minLength": 2.0, "maxLength": 2.0}, '"a"')
    with pytest.raises(RequestError, match="minProperties = 3 is above"):
        accepts({"type": "object", "minProperties": 3.0}, "{}")
