"""llama-server's /completion."""

import json
import re

import pytest

from http_server import Running

START = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}


def test_a_completion(server: Running) -> None:
    same = {"prompt": START["prompt"], "max_tokens": 12, "temperature": 0}
    text = server.post("/v1/completions", same).json["choices"][0]["text"]
    got = server.post("/completion", {**START, "return_tokens": True, "n_probs": 2}).json
    assert got["content"] == text and len(got["tokens"]) == 12
    assert got["stop"] and got["stop_type"] == "limit" and not got["truncated"]
    assert got["generation_settings"]["temperature"] == 0
    assert got["generation_settings"]["top_k"] == 40, "llama-server's own default"
    assert got["timings"]["predicted_n"] == 12 == got["tokens_predicted"]
    assert got["timings"]["cache_n"] + got["timings"]["prompt_n"] == got["tokens_evaluated"]
    first = got["completion_probabilities"][0]
    assert first["id"] == got["tokens"][0] and len(first["top_logprobs"]) == 2
    assert first["top_logprobs"][0]["logprob"] == first["logprob"]


def test_settings_are_reported_as_they_were(server: Running) -> None:
    plain = server.post("/completion", START).json["generation_settings"]
    assert plain["n_probs"] == 0 and plain["n_predict"] == 12
    reported = server.post("/completion", {**START, "n_probs": 2}).json["generation_settings"]
    assert reported["n_probs"] == 2
    body = {"prompt": "Once", "stop": [" "]}
    assert server.post("/completion", body).json["generation_settings"]["n_predict"] == -1


@pytest.mark.parametrize(
    "field",
    [
        {"lora": []}, {"response_fields": []}, {"t_max_predict_ms": 0}, {"t_max_predict_ms": -1},
        {"dynatemp_range": 0, "dynatemp_exponent": 1.5}, {"sse_ping_interval": 30},
        {"top_n_sigma": -1}, {"top_n_sigma": 0}, {"min_keep": 0}, {"n_indent": 0},
    ],
)  # fmt: skip
def test_what_changes_nothing_is_taken(server: Running, field: dict[str, object]) -> None:
    body = {**START, "seed": 7}
    plain = server.post("/completion", body).json
    got = server.post("/completion", {**body, **field})
    assert got.status == 200, got.body
    assert got.json["content"] == plain["content"]
    assert got.json["generation_settings"] == plain["generation_settings"]


def test_a_stream_joined_is_the_answer(server: Running) -> None:
    body = {**START, "stop": ["little"], "n_predict": 40}
    whole = server.post("/completion", body).json
    assert whole["stop_type"] == "word" and whole["stopping_word"] == "little"
    events = server.post("/completion", {**body, "stream": True}).events
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["stopping_word"] == "little"


def test_prompts_of_all_kinds(server: Running) -> None:
    ids = server.post("/tokenize", {"prompt": "Once upon a time"}).json["tokens"]
    text = server.post("/completion", START).json["content"]
    assert server.post("/completion", {**START, "prompt": ids}).json["content"] == text
    mixed = [ids[0], *ids[1:3], " a time"]
    assert server.post("/completion", {**START, "prompt": mixed}).json["content"] == text
    several = server.post("/completion", {**START, "prompt": ["One day", ids]}).json
    assert [one["index"] for one in several] == [0, 1] and several[1]["content"] == text
    cold = server.post("/completion", {**START, "cache_prompt": False}).json
    assert cold["content"] == text and cold["tokens_cached"] == 0


def test_biases_by_text_or_id(server: Running) -> None:
    word = server.post("/completion", {**START, "n_predict": 1, "return_tokens": True}).json
    (token,) = word["tokens"]
    for banned in ([[token, False]], {str(token): -100}, [[word["content"], False]]):
        got = server.post("/completion", {**START, "n_predict": 1, "logit_bias": banned})
        assert got.status == 200 and got.json["content"] != word["content"], banned


@pytest.mark.parametrize(
    "field",
    [
        {"samplers": ["top_k"]}, {"grammar_file": "x"}, {"n_keep": -2}, {"id_slot": 1},
        {"min_keep": 2},
        {"repeat_last_n": -2}, {"dynatemp_range": 0.5}, {"n_predict": -2},
        {"logit_bias": [[1, True]]},
        {"lora": [{"id": 0, "scale": 1}]}, {"t_max_predict_ms": 5},
        {"response_fields": ["content"]}, {"sse_ping_interval": 5}, {"top_n_sigma": -2},
    ],
)  # fmt: skip
def test_what_cannot_be_supported_is_refused(server: Running, field: dict[str, object]) -> None:
    got = server.post("/completion", {"prompt": "x", **field})
    assert got.status == 400 and next(iter(field)) in got.json["error"]["message"]


def test_a_schema_is_kept_to(server: Running) -> None:
    schema = {"enum": ["a", 5]}
    got = server.post("/completion", {"prompt": "x", "json_schema": schema, "seed": 1}).json
    assert json.loads(got["content"]) in ("a", 5)
    got = server.post("/completion", {"prompt": "x", "json_schema": {"uniqueItems": True}})
    assert got.status == 400 and "json_schema: at '#'" in got.json["error"]["message"]


def test_a_grammar_is_kept_to(server: Running) -> None:
    """GBNF, as llama-server's clients send it; elsewhere too, and Lark here."""
    text = 'root ::= "<" x-y ">"\nx-y ::= [a-f]{3} | "no"  # one of them\n'
    requested = {"prompt": "x", "grammar": text, "seed": 1, "temperature": 1}
    got = server.post("/completion", requested)
    assert re.fullmatch("<([a-f]{3}|no)>", got.json["content"]), got.body
    assert (
        server.post("/completion", {**requested, "grammar": 'start: "yes"'}).json["content"]
        == "yes"
    )
    assert server.post("/completion", {**requested, "grammar": "", "n_predict": 2}).status == 200
    body = {"prompt": "x", "structured_outputs": {"grammar": text}}
    (choice,) = server.post("/v1/completions", body).json["choices"]
    assert re.fullmatch("<([a-f]{3}|no)>", choice["text"])
    got = server.post("/completion", {**requested, "grammar": text + "x-y ::= [z]"})
    assert got.status == 400 and got.json["error"]["param"] == "grammar"
    assert got.json["error"]["message"] == "grammar: line 3: the rule 'x-y' is defined twice"
    got = server.post("/completion", {**requested, "json_schema": {}})
    assert got.status == 400 and "exclude each other" in got.json["error"]["message"]


def test_a_draw_can_be_repeated(server: Running) -> None:
    body = {"prompt": "Once upon", "n_predict": 12, "temperature": 1.5, "n_cmpl": 2}
    first = server.post("/completion", body).json
    seed = first[0]["generation_settings"]["seed"]
    again = server.post("/completion", {**body, "seed": seed}).json
    assert [one["content"] for one in again] == [one["content"] for one in first]
    assert again[0]["generation_settings"]["seed"] == seed


def test_refusals_have_its_names(server: Running) -> None:
    error = server.post("/completion", {"prompt": ["a"] * 17, "n_cmpl": 128}).json["error"]
    assert error["param"] == "n_cmpl" and error["message"].startswith("n_cmpl: 2176 choices")
