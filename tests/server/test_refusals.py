"""What clients learn of their mistakes: the field they wrote, its value, what may be there."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from flyweight.server.apis.body import make_refusal
from flyweight.server.apis.openai.completions import CompletionBody
from flyweight.server.apis.routes import ROUTES
from flyweight.server.settings import ServerSettings
from http_server import Reply, Running

TALK = [{"role": "user", "content": "A cat sat."}]
CHAT, TEXT, SAID = "/v1/chat/completions", "/v1/completions", "/v1/messages"
VECTORS, ANSWERS = "/v1/embeddings", "/v1/responses"
LIBRARY = ("Input should", "after validation", "valid string", "valid list", "valid dictionary",
           "instance of", "unable to parse", "greater than or", "Extra inputs")  # fmt: skip
UNTYPED = {"type": "object", "properties": {"a": {"not": {"pattern": "a"}}}}
NUMBER = {"type": "integer"}


def message(got: Reply) -> str:
    assert got.status == 400, (got.status, got.body)
    error = got.json["error"]
    found: str = error if isinstance(error, str) else error["message"]
    assert not any(word in found for word in LIBRARY), found
    return found


def name_of(server: Running) -> str:
    found: str = server.get("/v1/models").json["data"][0]["id"]
    return found


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (TEXT, {"prompt": [-1]}, "prompt.0", "= -1 is not valid; allowed: 0 or more."),
        (TEXT, {"prompt": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "or -1"),
        (TEXT, {"prompt": []}, "prompt", "allowed: 1 entry or more"),
        (TEXT, {"prompt": ["a", 5]}, "prompt.1", "= 5 is not valid; allowed: text"),
        (TEXT, {"prompt": [[1], []]}, "prompt.1", "= [] is not valid; allowed: 1 entry or more"),
        (TEXT, {"prompt": [[1], ["a"]]}, "prompt.1.0", "allowed: a whole number"),
        (TEXT, {"prompt": [1.5]}, "prompt.0", "allowed: a whole number, or text, or a list"),
        (TEXT, {"prompt": {"a": 1}}, "prompt", "allowed: text, or a list"),
        (TEXT, {"prompt": "x", "stop": 5}, "stop", "allowed: text, or a list"),
        (TEXT, {"prompt": "x", "stop": ["x", ""]}, "stop.1", "1 character or more"),
        (TEXT, {"prompt": "x", "top_p": 1.5}, "top_p", "up to 1; nearest valid: 1."),
        (TEXT, {"prompt": "x", "min_p": -1}, "min_p", "allowed: 0 to 1; nearest valid: 0."),
        (TEXT, {"prompt": "x", "min_tokens": -1}, "min_tokens", "; nearest valid: 0."),
        (TEXT, {"prompt": "x", "n": 0}, "n", "allowed: 1 to 128; nearest valid: 1."),
        (TEXT, {"prompt": "x", "logprobs": 65}, "logprobs", "; nearest valid: 20."),
        (TEXT, {"prompt": "x", "stream": "yes"}, "stream", "allowed: true or false"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "text, or a"),
        (CHAT, {"messages": TALK, "tool_choice": {"type": "function"}}, "tool_choice.function",
         "is missing"),
        (CHAT, {"messages": TALK, "tool_choice": 5}, "tool_choice", "'required', or an object"),
        (CHAT, {"messages": TALK, "tool_choice": "any"}, "tool_choice", "'auto' or 'required'."),
        (CHAT, {"messages": [{"role": "usr", "content": "x"}]}, "messages.0.role",
         "'function' (did you mean 'user'?)."),
        (TEXT, {"prompt": "x", "top_p": 0}, "top_p", "allowed: more than 0, up to 1."),
        (CHAT, {"messages": TALK, "functions": []}, "functions", "use 'tools'"),
        (ANSWERS, {"input": [{"type": "image"}]}, "input.0",
         "'message', 'function_call', 'function_call_output', 'reasoning'; images"),
        (ANSWERS, {"input": [{"type": "function_call", "name": "f", "arguments": ""}]},
         "input.0.call_id", "is missing"),
        (ANSWERS, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0.type", "images and files are not supported"),
        (ANSWERS, {"input": "x", "include": ["all"]}, "include.0", "'reasoning.encrypted_content'"),
        (VECTORS, {"input": ["a", 5]}, "input.1", "allowed: text"),
        (VECTORS, {}, "input", "allowed: exactly one of input, messages"),
    ],
)  # fmt: skip
def test_a_misspelled_field_names_the_nearest_one(
    talker: Running, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    got = talker.post(path, body)
    assert words in message(got) + "." and got.json["error"]["param"] == param, got.json


@pytest.mark.parametrize(
    ("limits", "field", "range"),
    [
        ({}, {"n": 0}, "1 to 128; nearest valid: 1"),
        ({"max_choices": 4}, {"n": 500}, "1 to 4; nearest valid: 4"),
        ({}, {"prompt_logprobs": 65}, "0 to 20; nearest valid: 20"),
        ({"max_logprobs": 40}, {"logprobs": 65}, "0 to 40; nearest valid: 40"),
        ({"max_priority": 3}, {"priority": 2**31}, "-3 to 3; nearest valid: 3"),
    ],
)
def test_ranges_end_where_this_servers_limits_do(
    limits: dict[str, Any], field: dict[str, Any], range: str
) -> None:
    with pytest.raises(ValidationError) as found:
        CompletionBody.model_validate({"prompt": "x", **field})
    reported = make_refusal(found.value, CompletionBody, ServerSettings(**limits))
    assert str(reported).endswith(f"is not valid; allowed: {range}")


def test_blocks_that_are_not_read_are_named(talker: Running) -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "", "media_type": "image/png"}}
    talk = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    body = {"model": name_of(talker), "max_tokens": 4, "messages": talk}
    reported = message(talker.post(SAID, body))
    assert reported.startswith(
        "messages.0.content.1.type = 'image' is not valid; allowed: 'text', "
    )
    assert reported.endswith("images and files are not supported")
    cited = [{"type": "text", "text": "x", "citations": [1]}]
    body["messages"] = [{"role": "user", "content": cited}]
    assert "citations = [1] is not valid; allowed: none" in message(talker.post(SAID, body))


def test_each_api_has_names_of_its_own(talker: Running) -> None:
    model = name_of(talker)
    said = {"model": model, "max_tokens": 4, "messages": TALK}
    for many, words in ((5, ": 5 strings; allowed: 0 to 4"), (65, " = ['x', ")):
        reported = message(talker.post(SAID, {**said, "stop_sequences": ["x"] * many}))
        assert reported.startswith(f"stop_sequences{words}")
    for tool, words in ((NUMBER, "tools.0.input_schema.type = 'integer'"),
                        (UNTYPED, "tools.0.input_schema: at '/properties/a'")):  # fmt: skip
        named = {"tools": [{"name": "f", "input_schema": tool}], "tool_choice": {"type": "any"}}
        assert words in message(talker.post(SAID, {**said, **named}))
    function = {"type": "function", "name": "f", "parameters": NUMBER}
    body = {"input": "x", "tools": [function], "tool_choice": "required"}
    assert "tools.0.parameters.type = 'integer'" in message(talker.post(ANSWERS, body))
    long = "cat " * 600
    got = talker.post(VECTORS, {"input": long})
    assert message(got).startswith("input has ") and got.json["error"]["param"] == "input"
    assert message(talker.post("/api/embed", {"model": model, "input": long, "truncate": False}))
    talk = [{"role": "user", "content": long}]
    assert talker.post(CHAT, {"messages": talk}).json["error"]["param"] == "messages"
    got = talker.post(ANSWERS, {"input": long})
    assert message(got).startswith("input has ") and got.json["error"]["param"] == "input"
    talk = [{"role": "user", "images": ["x"]}]
    reported = message(talker.post("/api/chat", {"model": model, "messages": talk}))
    assert reported.startswith("messages.0.images = ['x'] is not valid; allowed: none; images and")
    options = {"seed": 1, "top_k": 1, "mirostat": 1}
    reported = message(
        talker.post("/api/chat", {"model": model, "messages": TALK, "options": options})
    )
    assert reported.startswith("options.mirostat = 1")


def test_a_number_that_no_float_holds_is_named(talker: Running) -> None:
    got = talker.post(TEXT, b'{"prompt": "x", "temperature": 1e400, "seed": 3}')
    assert message(got).startswith("temperature = '1e400' is not valid")
    assert got.json["error"]["param"] == "temperature"
    got = talker.post(TEXT, b'{"prompt": "x", "logit_bias": {"5": -1e999}}')
    assert got.json["error"]["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("path", "more", "param", "words"),
    [
        (CHAT, {"logprobs": False, "top_logprobs": 2}, "top_logprobs", "logprobs = true"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", "logprobs = true"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options", "stream = true"),
        (TEXT, {"stream_options": {}, "stream": False}, "stream_options", "stream = true"),
        (TEXT, {"length_penalty": 2.0}, "length_penalty", "use_beam_search"),
        (TEXT, {"use_beam_search": True, "top_k": 5}, "top_k", "beam search"),
        (TEXT, {"use_beam_search": True, "logprobs": 1}, "logprobs", "beam search"),
        (TEXT, {"use_beam_search": True, "temperature": 0.5}, "temperature", "0, 1"),
        (TEXT, {"use_beam_search": True, "n": 33}, "n", "32"),
        (TEXT, {"suffix": "x", "truncate_prompt_tokens": 3}, None, "suffix"),
        (CHAT, {"store": "yes"}, "store", "true or false"),
        (CHAT, {"spaces_between_special_tokens": False}, "spaces_between_special_tokens", "true"),
        (CHAT, {"spaces_between_special_tokens": 1}, "spaces_between_special_tokens", "or false"),
        (CHAT, {"modalities": ["audio"]}, "modalities.0", "'text'"),
        (CHAT, {"chat_template": "{{ x }}"}, "chat_template", "null"),
        (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}},
         "stream_options.include_obfuscation", "allowed: false"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_together_is_refused(
    talker: Running, path: str, more: dict[str, Any], param: str | None, words: str
) -> None:
    prompt: dict[str, Any] = {"messages": TALK} if path == CHAT else {"prompt": "Once"}
    got = talker.post(path, {**prompt, "max_tokens": 2, **more})
    assert words in message(got)
    assert param is None or got.json["error"]["param"] == param, got.json


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_token", " (did you mean 'max_tokens'?)"), ("top-p", " (did you mean 'top_p'?)"),
        ("stroe", " (did you mean 'store'?)"), ("thread", ""),
        ("logprob_token_idx", " (did you mean 'logprob_token_ids'?)"),
        ("truncate_prompt_token", " (did you mean 'truncate_prompt_tokens'?)"),
    ],
)  # fmt: skip
def test_hints_are_for_slips_of_the_pen(talker: Running, name: str, hint: str) -> None:
    reported = message(talker.post(CHAT, {"messages": TALK, name: 1}))
    assert reported == f"{name}: unknown field{hint}"


def test_hints_within_objects(talker: Running) -> None:
    model = {"model": name_of(talker), "messages": TALK}
    reported = talker.post("/api/chat", {**model, "options": {"num_predcit": 1}}).json["error"]
    assert reported.endswith("unknown field (did you mean 'num_predict'?)")
    reported = message(talker.post(CHAT, {**model, "stream_options": {"include_usag": True}}))
    assert reported.endswith("unknown field (did you mean 'include_usage'?)")


def test_a_null_is_as_good_as_absent(talker: Running) -> None:
    """Fields that may be left out, and others that are unknown, in every dialect; as the document
    has it.
    """
    schemas = talker.get("/openapi.json").json["components"]["schemas"]
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": TALK, "max_tokens": 2},
        TEXT: {"prompt": "Once", "max_tokens": 2},
        SAID: {"model": name_of(talker), "messages": TALK, "max_tokens": 2},
        ANSWERS: {"input": "Once", "max_output_tokens": 2},
        VECTORS: {"input": "Once"},
        "/api/chat": {"model": name_of(talker), "messages": TALK, "options": {"num_predict": 2}},
        "/api/generate": {"model": name_of(talker), "prompt": "x", "options": {"num_predict": 2}},
        "/completion": {"prompt": "Once", "n_predict": 2},
        "/generate": {"prompt": "Once", "max_tokens": 2},
    }
    for path, body in bodies.items():
        (entry,) = [one for one in ROUTES if one.path == path]
        assert entry.body is not None
        absent = {field.alias or name: None for name, field in entry.body.model_fields.items()}
        got = talker.post(path, {**absent, "who_knows": None, **body})
        assert got.status == 200, (path, got.body)
        schema = schemas[entry.body.__name__]
        assert schema["additionalProperties"] == {"type": "null"}
        for name in absent.keys() - set(schema.get("required", ())):
            assert '"null"' in json.dumps(schema["properties"][name]), (path, name)


def test_an_id_has_one_bias(server: Running) -> None:
    got = server.post("/v1/completions", {"prompt": "x", "logit_bias": {"012": 5, "12": -5}})
    assert got.status == 400 and got.json["error"]["param"] == "logit_bias"
    assert "'012'" in got.json["error"]["message"] and "'12'" in got.json["error"]["message"]
    assert server.post("/v1/completions", {"prompt": "x", "logit_bias": {"012": 5}}).status == 200


def test_a_model_that_is_not_here_is_one_error(server: Running) -> None:
    requested = server.post("/v1/completions", {"model": "storys", "prompt": "x"})
    got = server.get("/v1/models/storys")
    assert got.status == requested.status == 404 and got.json == requested.json
    assert got.json["error"]["code"] == "model_not_found"
    empty = server.post("/v1/completions", {"model": "", "prompt": "x"})
    assert empty.status == 404 and empty.json["error"]["code"] == "model_not_found"
    says = f"model = '' is not served; served: {name_of(server)}"
    assert empty.json["error"]["message"] == says


@pytest.mark.parametrize("coding", ["xchunked", "gzip", "gzip, chunked", "identity", "chunked, x"])
def test_an_unknown_transfer_coding_is_answered(server: Running, coding: str) -> None:
    head = f"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n"
    got = server.raw(head.encode() + b"5\r\nhello\r\n0\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 400 "), got
    assert b'"error"' in got and server.get("/health").status == 200


NEUTRAL = {
    "watermarking": False, "return_mm_kwargs": False, "return_token_offsets": False,
    "vllm_xargs": {}, "media_io_kwargs": {}, "mm_processor_kwargs": {}, "kv_transfer_params": {},
    "ec_transfer_params": {},
}  # fmt: skip


def test_fields_without_effect_are_taken_at_the_value_that_has_none(server: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    assert server.post("/v1/completions", {**body, **NEUTRAL}).status == 200
    assert server.post("/v1/completions", {**body, **dict.fromkeys(NEUTRAL)}).status == 200
    for name, neutral in NEUTRAL.items():
        got = server.post("/v1/completions", {**body, name: {"a": 1} if neutral == {} else True})
        assert got.status == 400 and got.json["error"]["param"] == name
