"""Refusals of schemas and grammars are in our words, with a place and the nearest that is valid."""

from typing import Any

import pytest

from http_server import Running

THEIRS = (
    "NoExtensionBias",
    "retriever",
    "regex parse error",
    "Invalid type",
    "Unsatisfiable",
    "must be a string",
    " | ",
)  # of its drawings


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"json": {"$ref": "#"}}, "'/$ref': it refers to itself"),
        ({"json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                   "properties": {"x": {"$ref": "#/$defs/a"}}}}, "/$ref': it refers to itself"),
        ({"json": {"allOf": [{"$ref": "#"}]}}, "no text satisfies it"),
        ({"json": {"properties": {"a": {"$ref": "http://a.example/b"}}}},
         "'/properties/a/$ref': $ref = 'http://a.example/b' is outside this schema; allowed: '#'"),
        ({"json": {"$defs": {"cat": {}}, "$ref": "#/$defs/cut"}}, "did you mean '#/$defs/cat'?"),
        ({"json": {"properties": {"a": {"type": "strin"}}}},
         "'/properties/a/type': type = 'strin' is not valid (did you mean 'string'?); allowed: "
         "array"),
        ({"json": {"type": ["string", 5]}}, "'/type': type = 5 is not valid; allowed: array"),
        ({"json": {"enum": []}}, "structured_outputs.json: no value satisfies it: anyOf is empty"),
        ({"json": {"$ref": 5}}, "'/$ref': 5 is not text"),
        ({"json": {"type": "string", "pattern": "("}}, "'(' is not a supported regex: uncl"),
        ({"regex": "("}, "structured_outputs.regex: '(' is not a supported regex: unclosed"),
        ({"regex": "a{2,1}"}, "'a{2,1}' is not a supported regex: invalid repetition"),
        ({"grammar": "start: a\n" + "\n" * 9 + 'a: %json {"anyOf": []}\n'}, "failed to comp"),
        ({"grammar": "start: start"}, "no text satisfies it: a rule of it only leads back"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_its_place(
    server: Running, requested: dict[str, Any], words: str
) -> None:
    body = {"prompt": "a", "max_tokens": 2, "structured_outputs": requested}
    got = server.post("/v1/completions", body)
    message = got.json["error"]["message"]
    assert got.status == 400 and words in message, message
    assert not any(theirs in message for theirs in THEIRS)


def test_refs_that_make_progress_are_taken(server: Running) -> None:
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/leaf"}},
        "$defs": {"leaf": {"$ref": "#/$defs/word"}, "word": {"enum": ["x"]}},
    }
    body = {"prompt": "a", "max_tokens": 2, "structured_outputs": {"json": tree}}
    assert server.post("/v1/completions", body).status == 200
