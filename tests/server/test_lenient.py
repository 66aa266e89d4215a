"""A server that leaves unknown fields out, and says which: on every route, whatever their names."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from flyweight.server.apis.fields import remove_unknown
from flyweight.server.transport.replies import LONGEST, MOST, format_names
from http_server import Running

HEADER = "x-ignored-params"
TALK = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK, "max_tokens": 1},
    "/v1/chat/completions/input_tokens": {"messages": TALK},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 16},
    "/v1/embeddings": {"input": "a"},
    "/v1/messages": {"model": "stories", "messages": TALK, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "stories", "messages": TALK},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": TALK},
    "/api/chat": {"model": "stories", "messages": TALK, "options": {"num_predict": 1}},
    "/api/generate": {"model": "stories", "prompt": "a", "options": {"num_predict": 1}},
    "/api/embed": {"model": "stories", "input": "a"},
    "/api/show": {"model": "stories"},
    "/generate": {"prompt": "a", "max_tokens": 1},
}


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_says_what_it_left_out(lenient: Running, path: str) -> None:
    got = lenient.post(path, {**ROUTES[path], "new_option": 1, "other": {"x": 1}})
    assert got.status == 200, got.body
    assert got.headers[HEADER] == "new_option, other"
    assert HEADER not in lenient.post(path, ROUTES[path]).headers


def test_a_model_that_is_only_loaded(lenient: Running) -> None:
    got = lenient.post("/api/generate", {"model": "stories", "new_option": 1})
    assert got.json["done_reason"] == "load" and got.headers[HEADER] == "new_option"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("имя", "%D0%B8%D0%BC%D1%8F"),
        ("a\r\nset-cookie: b", "a%0D%0Aset-cookie%3A%20b"),
        ("a, b", "a%2C%20b"),
        ("", ""),
        ("\x00\x7f%", "%00%7F%25"),
        ("n" * 1000, "n" * LONGEST + "..."),
    ],
)
def test_names_cannot_leave_the_header(lenient: Running, name: str, shown: str) -> None:
    for stream in (False, True):
        body = {"prompt": "a", "max_tokens": 1, "stream": stream, name: 1}
        got = lenient.post("/v1/completions", body)
        assert got.status == 200 and got.headers[HEADER] == shown
        assert "set-cookie" not in got.headers


def test_many_names_are_counted(lenient: Running) -> None:
    body = {"prompt": "a", "max_tokens": 1, **{"é" * 50 + str(i): i for i in range(20_000)}}
    got = lenient.post("/v1/completions", body)
    assert got.status == 200
    assert got.headers[HEADER].endswith(f", ... ({20_000 - MOST} more)")
    assert len(got.headers[HEADER]) < (6 * LONGEST + 5) * MOST + 30
    assert format_names(["a"] * MOST) == ", ".join("a" * MOST)


def test_fields_within_fields_have_dotted_names(lenient: Running) -> None:
    body = {
        "prompt": "a",
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "more": 1},
        "structured_outputs": {"regex": "a", "backend": "x"},
        "new_option": 1,
    }
    got = lenient.post("/v1/completions", body)
    assert got.status == 200, got.body
    assert set(got.headers[HEADER].split(", ")) == {
        "new_option", "stream_options.more", "structured_outputs.backend",
    }  # fmt: skip
    assert got.events[-1]["usage"]["completion_tokens"] == 1
    blocks = [{"type": "text", "text": "Hi", "color": 1}]
    message = {"role": "user", "content": blocks}
    got = lenient.post("/v1/messages", {"model": "stories", "max_tokens": 1, "messages": [message]})
    assert got.status == 200, got.body
    assert got.headers[HEADER] == "messages.0.content.0.color"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("name", ["guided_json", "guidedRegex", "structural_tag", "outputSchema"])
def test_a_field_that_constrains_the_answer_is_never_left_out(
    lenient: Running, path: str, name: str
) -> None:
    got = lenient.post(path, {**ROUTES[path], "new_option": 1, name: "x"})
    assert got.status == 400 and name.encode() in got.body, got.body


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        ("/v1/messages", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/api/chat", {"options": {"grammar": 'root ::= "a"'}}, "grammar"),
        ("/v1/completions", {"extra_body": {"guided_choice": ["a"]}}, "extra_body"),
        ("/v1/responses", {"text": {"json_schema": {}}}, "json_schema"),
        ("/v1/completions", {"structured_outputs": {"regex": "a", "structural_tag": "b"}},
         "structural_tag"),
    ],
)  # fmt: skip
def test_nor_is_one_within_another(
    lenient: Running, path: str, more: dict[str, Any], named: str
) -> None:
    got = lenient.post(path, {**ROUTES[path], **more})
    assert got.status == 400 and named.encode() in got.body, got.body


def test_what_is_known_and_wrong_is_refused_all_the_same(lenient: Running) -> None:
    got = lenient.post("/v1/completions", {"prompt": "a", "n": "two", "new_option": 1})
    assert got.status == 400 and got.json["error"]["param"] == "n"
    assert got.headers[HEADER] == "new_option"


class Of(BaseModel):
    model_config = ConfigDict(extra="forbid")


class One(Of):
    a: int


class Two(Of):
    a: str
    b: int


class Whole(Of):
    each: list[One | Two]


def test_a_stray_is_what_the_right_kind_does_not_know() -> None:
    """`b` is unknown to the first kind, which would not take the rest either."""
    given: dict[str, Any] = {"each": [{"a": "x", "b": 1, "c": 2}]}
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(given)
    assert remove_unknown(given, caught.value) == ["each.0.c"]
    assert given == {"each": [{"a": "x", "b": 1}]}
    nothing = {"each": [{"a": "x", "c": 2}]}  # no kind takes the rest
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(nothing)
    assert remove_unknown(nothing, caught.value) == []
