"""Error codes: every error has one, and docs/errors.md lists each with its status."""

import re
from pathlib import Path
from typing import Any

import pytest

from flyweight.errors import RequestError
from flyweight.server.transport.errors import CODES, HttpError, to_http_error
from http_server import Reply, Running

ROOT = Path(__file__).parents[2]
TALK = [{"role": "user", "content": "A cat sat."}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
UNTYPED = {"type": "object", "properties": {"a": {"not": {"pattern": "a"}}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": UNTYPED}}


def documented() -> set[tuple[int, str]]:
    page = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", page, re.MULTILINE)
    return {(int(status), code) for status, code in found}


def code_of(got: Reply) -> str:
    """The code of an error, which the page lists with this status."""
    error = got.json["error"]
    assert (got.status, error["code"]) in documented(), error
    return str(error["code"])


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"json": {"$ref": "#"}}, "structured_outputs.json"),
        ({"json": {"type": "strin"}}, "structured_outputs.json"),
        ({"json": UNTYPED}, "structured_outputs.json"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": {"type": "string", "pattern": "("}}, "structured_outputs.json"),
        ({"regex": "("}, "structured_outputs.regex"),
        ({"regex": "a{1,100000}"}, "structured_outputs.regex"),
        ({"grammar": "start: start"}, "structured_outputs.grammar"),
        ({"grammar": "start ::= a"}, "structured_outputs.grammar"),
        ({"grammar": "nonsense"}, "structured_outputs.grammar"),
    ],
)
def test_constraints_that_do_not_compile(
    server: Running, given: dict[str, Any], param: str
) -> None:
    got = server.post(TEXT, {"prompt": "a", "max_tokens": 2, "structured_outputs": given})
    assert code_of(got) == "bad_constraint" and got.json["error"]["param"] == param


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"prompt": }', ": expecting value (line 1, column 12)"),
        (b'{"prompt": "a",\n "n": 1', ": expecting ',' delimiter (line 2, column 8)"),
        (b"", ": expecting value (line 1, column 1)"),
        (b'\xef\xbb\xbf{"prompt": "a"}', "(line 1, column 1)"),
        (b'{"prompt": "\xff"}', "the body is not valid"),
        (b'{"prompt": "\\ud800"}', "UTF-16 surrogate"),
        (b'{"prompt": "a"} x', "(line 1, column 17)"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_bodies_that_are_not_json(server: Running, raw: bytes, words: str) -> None:
    got = server.post(TEXT, raw)
    message = got.json["error"]["message"]
    assert code_of(got) == "invalid_json" and words in message, message
    assert message.lower().count("json") <= 1 and "malformed" not in message


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (TEXT, {}, "missing_field"),
        (CHAT, {"messages": [{"role": "user"}]}, "missing_field"),
        ("/v1/embeddings", {}, "missing_field"),
        (TEXT, {"prompt": "x", "top_p": 2}, "bad_value"),
        (TEXT, {"prompt": "x", "stop": ["a"] * 65}, "bad_value"),
        (TEXT, {"prompt": [10**6]}, "bad_value"),
        (TEXT, {"prompt": "x", "max_token": 1}, "unknown_field"),
        (TEXT, {"prompt": "x " * 9999}, "context_length_exceeded"),
        (TEXT, {"prompt": "x", "model": "none"}, "model_not_found"),
        (CHAT, {"messages": TALK, "tool_choice": "required"}, "bad_request"),
        (CHAT, {"messages": TALK, "tools": [TOOL], "tool_choice": "required"}, "bad_constraint"),
        (TEXT, b'{"prompt": ' + b"[" * 9999, "body_values_limit"),
        (TEXT, b'{"prompt": [' + b"1," * 10**6 + b"1]}", "body_values_limit"),
    ],
)
def test_refused_requests(talker: Running, path: str, body: Any, code: str) -> None:
    assert code_of(talker.post(path, body)) == code


def test_refused_routes_and_types(server: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    assert code_of(server.get("/v1/nothing")) == "not_found"
    assert code_of(server.get(TEXT)) == "method_not_allowed"
    for header in ({"content-encoding": "gzip"}, {"content-type": "text/csv"}):
        assert code_of(server.ask("POST", TEXT, body, header)) == "unsupported_media_type"
    assert code_of(server.get("/health", host="evil.example")) == "not_allowed"
    raw = server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n")
    assert raw.startswith(b"HTTP/1.1 431 ") and b'"code":"header_limit"' in raw


def test_refusals_without_a_code_have_that_of_their_status() -> None:
    assert {*CODES.items()} <= documented()


def test_errors_without_a_code_get_one() -> None:
    assert RequestError("cannot be combined with b", "a").code == "bad_request"
    assert RequestError("is out of range", "a", value=3).code == "bad_value"
    assert RequestError("has 3 entries", "a", allowed="at most 2").code == "bad_value"
    assert HttpError(413, "too large").code == "body_bytes_limit"
    assert to_http_error(ValueError()).code == "internal_error"
