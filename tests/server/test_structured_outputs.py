"""Structured outputs over HTTP: what comes out, what is refused, and that nobody else waits."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flyweight.server.lifecycle.running import list_family
from http_server import Reply, Running, served, started

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "born": {"type": "string", "format": "date"},
        "cats": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "born", "cats"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
TALK = [{"role": "user", "content": "Tell me about a cat."}]
BOMBS = {
    "dates": {"json": {"type": "object", "properties": {
        f"p{i}": {"type": "string", "format": "date-time"} for i in range(1100)}}},
    "nesting": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "groups": {"grammar": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "levels": {"json": '{"items":' * 5_000 + "{}" + "}" * 5_000},
    "enum": {"json": {"enum": [f"v{i:06}" for i in range(5_500)]}},
    "repeats": {"regex": "((((a{1,999}){1,999}){1,999}){1,999}){1,999}"},
    "back": {"regex": "(a+)+b"},
    "minLength": {"json": {"type": "string", "minLength": 10**9, "maxLength": 10**9}},
    "minItems": {"json": {"type": "array", "minItems": 10**9, "items": {"minItems": 10**9}}},
    "multiples": {"json": {"type": "integer", "multipleOf": 99991, "minimum": 10**15}},
    "doubling": {"json": {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"anyOf": [
            {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"minimum": i}]},
            {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"maximum": i}]}]} for i in range(30)},
        "d30": {"type": "integer"}}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def hurried() -> Iterator[Running]:
    with started("--schema-compile-timeout", "1") as running:
        yield running


def completed(server: Running, **body: Any) -> Reply:
    requested = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 1, **body}
    return server.post("/v1/completions", requested)


def test_a_schema_is_kept_to_in_both_apis(server: Running, talker: Running) -> None:
    got = completed(server, response_format=FORMAT, n=3, seed=1)
    assert got.status == 200, got.body
    for choice in got.json["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["text"]), SCHEMA)
    body = {"messages": TALK, "response_format": FORMAT, "max_tokens": 150}
    got = talker.post("/v1/chat/completions", body)
    assert got.status == 200, got.body
    jsonschema.validate(json.loads(got.json["choices"][0]["message"]["content"]), SCHEMA)


def test_a_stream_joined_is_the_answer(server: Running) -> None:
    requested = {"response_format": FORMAT, "seed": 5}
    whole = completed(server, **requested).json["choices"][0]
    streamed = completed(server, stream=True, **requested).events
    assert "".join(e["choices"][0]["text"] for e in streamed) == whole["text"]
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["red", "green"]}, "red|green"),
        ({"regex": "[0-9]{3}-[a-f]{1,9}x"}, "[0-9]{3}-[a-f]{1,9}x"),
        ({"grammar": 'start: "<" inner ">"\ninner: "a" | "b" "b" inner'}, "<(bb)*a>"),
        ({"json": json.dumps({"enum": [1, "two"]})}, '1|"two"'),
        ({"json": SCHEMA, "disable_any_whitespace": True}, r'\{"name":"[^"].*'),
        ({"json": SCHEMA, "whitespace_pattern": "[ ]{2}"}, r'\{"name":  "[^"].*'),
    ],
)
def test_structured_outputs(server: Running, form: dict[str, Any], pattern: str) -> None:
    (choice,) = completed(server, structured_outputs=form, seed=2).json["choices"]
    assert re.fullmatch(pattern, choice["text"]), choice["text"]


def test_json_objects_and_text(server: Running) -> None:
    got = completed(server, response_format={"type": "json_object"}, max_tokens=5)
    assert got.json["choices"][0]["text"].startswith("{")
    inline = {"type": "json_object", "schema": {"enum": [{}]}}
    assert completed(server, response_format=inline).json["choices"][0]["text"] == "{}"
    for schema in (
        {"schema": {"enum": [{}]}},  # llama-server's clients
        {"json_schema": {"schema": {"enum": [{}]}}},
        {"schema": None, "json_schema": {"name": None, "schema": {"enum": [{}]}}},
    ):
        got = completed(server, response_format={"type": "json_schema", **schema})
        assert got.json["choices"][0]["text"] == "{}"
    for schema, says in (
        ({"schema": {"type": "nothing"}}, "response_format.schema: at '/type'"),
        ({"schema": 5}, "response_format.schema = 5 is not valid; allowed: an object"),
        ({}, "response_format.json_schema is missing"),
        ({"schema": {}, "json_schema": {"schema": {}}}, "response_format.schema: unknown field"),
    ):
        got = completed(server, response_format={"type": "json_schema", **schema})
        assert got.status == 400 and says in got.json["error"]["message"], got.body
    plain = completed(server, temperature=0, max_tokens=8)
    text = completed(server, temperature=0, max_tokens=8, response_format={"type": "text"})
    assert text.json["choices"][0]["text"] == plain.json["choices"][0]["text"]


def test_a_grammar_and_options_that_leave_nothing_are_the_clients(server: Running) -> None:
    """Of the allowed tokens none begins an object."""
    (word,) = server.post("/tokenize", {"content": "a"}).json["tokens"][:1]
    got = completed(server, response_format={"type": "json_object"}, allowed_token_ids=[word])
    assert got.status == 400 and got.json["error"]["param"] == "structured_outputs"
    assert got.json["error"]["code"] == "no_token_left"


@pytest.mark.parametrize("regex", ["a{1000000000}", "(?:a{1,1000}){1,1000}"])
def test_counts_that_are_too_large_are_refused_at_once(server: Running, regex: str) -> None:
    got = completed(server, structured_outputs={"regex": regex}, max_tokens=300)
    assert got.status == 400 and "the counts of the pattern" in got.json["error"]["message"]
    assert got.json["error"]["param"] == "structured_outputs.regex"


def test_a_grammar_that_grows_as_the_text_does_is_the_clients(server: Running) -> None:
    """It compiles, and is too much some tokens later."""
    given = {"structured_outputs": {"regex": "(a?){3000}a{3000}"}, "max_tokens": 300}
    got = completed(server, **given)
    assert got.status == 400 and got.json["error"]["code"] == "grammar_limit"
    assert got.json["error"]["param"] == "structured_outputs"
    last = completed(server, **given, stream=True).events[-1]
    assert last["error"]["code"] == "grammar_limit"
    assert completed(server, max_tokens=2).status == 200


AMBIGUOUS = "start: e\ne: e e | /[a-z ]/ | /[a-z]+/"
TRIPLES = "start: e\ne: e e e | e e | /[a-z ]/ | /[a-z]+/"
TANGLED = "start: " + "|".join(f"r{i}" for i in range(300)) + "\n" + "\n".join(
    f'r{i}: r{(7 * i + 1) % 300} r{(3 * i + 2) % 300} | "x"' for i in range(300)
)  # fmt: skip
ENGINES = ("Parser", "<non-verbose", "Current row", "items", "lexer", "fuel")  # the library's words


@pytest.mark.parametrize("grammar", [TANGLED, AMBIGUOUS], ids=["tangled", "ambiguous"])
def test_a_grammar_that_is_too_ambiguous_is_the_clients(
    server: Running, at_length: bool, grammar: str
) -> None:
    """In our words, and in every API."""
    requested = {"structured_outputs": {"grammar": grammar}, "ignore_eos": True, "max_tokens": 400}
    ways: list[dict[str, Any]] = [{"n": 3}, {"prompt": ["a", "b"]}, {}, {"temperature": 0}]
    for more in ways if at_length else ways[:2]:
        got = completed(server, **requested, **more)
        error = got.json["error"]
        assert got.status == 400, error
        assert error["code"] in ("grammar_limit", "bad_constraint")
        assert error["param"].startswith("structured_outputs")
        assert "possible continuations" in error["message"]
        assert not any(word in error["message"] for word in ENGINES), error["message"]


def test_ambiguous_grammars_take_turns() -> None:
    """Two dozen of them do not make a step two dozen times as long as one does."""
    requested = {
        "structured_outputs": {"grammar": TRIPLES}, "ignore_eos": True, "max_tokens": 35,
        "temperature": 1.5, "seed": 1,
    }  # fmt: skip
    with served(server={"target_step_time": 0.01}) as server:
        found = []
        for choices in (1, 24):
            got = completed(server, **requested, n=choices)
            assert got.status == 200, got.body
            steps = server.get("/debug/steps").json["steps"][-8:]
            found.append(min(step["seconds"] for step in steps))
    one, many = found
    assert many < 10 * one


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"not": {"pattern": "a"}}}}},
         "response_format.json_schema.schema",
         "response_format.json_schema.schema: at '#': the keyword 'not' is not supported"),
        ({"response_format": {"type": "json_object", "schema": {"format": "iri"}}},
         "response_format.schema", "format"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "regex"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag",
         "unknown field"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs.grammar",
         "nowhere"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "response_format", "exclude each other"),
        ({"guided_json": {}}, "guided_json", "unknown field; use 'structured_outputs"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar", "use 'structured_outputs'"),
        ({"json_schema": {}}, "json_schema", "use 'structured_outputs'"),
        ({"structured_outputs": {"grammar": 'root ::= "a"\n\nx ::= b'}},
         "structured_outputs.grammar",
         "structured_outputs.grammar: line 3: the rule 'b' is not defined"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(
    server: Running, body: dict[str, Any], param: str, words: str
) -> None:
    got = completed(server, **body)
    assert got.status == 400, got.body
    assert got.json["error"]["param"] == param
    assert words in got.json["error"]["message"]


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_answered_or_refused(hurried: Running, name: str) -> None:
    """For every request: an answer, and the engine that gave it lives on."""
    got = completed(hurried, structured_outputs=BOMBS[name], max_tokens=4)
    assert got.status in (200, 400), got.body
    if got.status == 400:
        assert got.json["error"]["param"].startswith("structured_outputs")
        assert len(got.json["error"]["message"]) < 600
    assert completed(hurried, max_tokens=2).status == 200
    metrics = hurried.get("/metrics").body.decode()
    assert re.search(r"^flyweight:engine_restarts_total\S* 0", metrics, re.M)


def test_others_are_served_while_a_schema_compiles(server: Running) -> None:
    """Answers come, and other schemas pass, while the process that compiles one stands still."""
    assert completed(server, structured_outputs={"choice": ["a"]}).status == 200
    idle = {pid: seconds_of(pid) for pid in judges(server)}
    form = {"json": BOMBS["dates"]["json"], "disable_any_whitespace": True}
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(completed, server, structured_outputs=form, max_tokens=2)
        server.until(lambda: any(seconds_of(pid) > idle[pid] + 0.1 for pid in idle))
        (pid,) = [pid for pid in idle if seconds_of(pid) > idle[pid] + 0.1]
        os.kill(pid, signal.SIGSTOP)
        try:
            for word in ("b", "c"):
                assert completed(server, max_tokens=2).status == 200
                assert completed(server, structured_outputs={"choice": ["a", word]}).status == 200
            assert not slow.done()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert slow.result().status in (200, 400)


def judges(server: Running) -> list[int]:
    """Processes that try grammars."""
    members = [one.pid for one in list_family(server.process.pid)]
    return [pid for pid in members if pid not in (server.process.pid, server.worker)]


def seconds_of(pid: int) -> float:
    """Of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ignored_keywords_are_listed_in_a_header(server: Running) -> None:
    header = "x-ignored-schema-keywords"
    schema = {"items": {"type": "boolean", "optional": True}, "$hint": 1, "my key": 2}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": TALK, "max_tokens": 1}
    for own in ({"stream": False}, {"stream": True}):
        got = server.post("/v1/chat/completions", {**body, **own, "response_format": form})
        assert got.status == 200, got.body
        assert set(got.headers[header].split(", ")) == {"$hint", "my%20key", "optional"}
