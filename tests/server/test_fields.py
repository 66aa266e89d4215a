"""Fields that clients send, honoured as they are in OpenAI's, vLLM's and Anthropic's servers."""

from collections.abc import Iterator
from typing import Any

import pytest

import chat_model
from flyweight import LLM, BeamSearchParams
from http_server import Running, started

TALK = [{"role": "user", "content": "A cat sat."}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
GREEDY = {"temperature": 0, "max_tokens": 6}
LONG = "Once upon a time there was a small cat who sat on a mat."
THINKING = (
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{{ enable_thinking }}|{{ reasoning_effort }}|{{ verbosity }}{# <think></think> #}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The model inside with a template that reasons."""
    path = chat_model.write(tmp_path_factory.mktemp("fields") / "thinker.gguf", THINKING)
    with started(str(path), "--max-model-len", "512", "--served-model-name", "m") as running:
        yield running


def ids_of(server: Running, **given: Any) -> list[int]:
    found: list[int] = server.post("/tokenize", given).json["tokens"]
    return found


def ok(server: Running, path: str, **body: Any) -> dict[str, Any]:
    got = server.post(path, body)
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json
    return found


def test_what_openais_clients_send_changes_nothing(talker: Running) -> None:
    plain = ok(talker, CHAT, messages=TALK, **GREEDY)["choices"]
    sent = {
        "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "modalities": ["text"], "functions": None,
        "function_call": None, "chat_template": None, "user": "u", "length_penalty": 1.0,
        "spaces_between_special_tokens": True, "use_beam_search": False, "stream_options": None,
        "prompt_cache_retention": "24h", "cache_prompt": True,
    }  # fmt: skip
    assert ok(talker, CHAT, messages=TALK, **GREEDY, **sent)["choices"] == plain
    options = {"include_usage": None, "include_obfuscation": False}
    body = {"messages": TALK, **GREEDY, "stream": True, "stream_options": options}
    got = talker.post(CHAT, body)
    text = "".join(c["delta"].get("content", "") for e in got.events for c in e["choices"])
    assert got.status == 200 and text == plain[0]["message"]["content"]


def test_what_clients_of_responses_send(talker: Running) -> None:
    sent = {
        "include": ["reasoning.encrypted_content"], "store": False,
        "text": {"format": {"type": "text"}},
        "top_logprobs": 0, "stream_options": {"include_obfuscation": False},
        "reasoning": {"effort": None, "summary": "auto"}, "background": None,
        "prompt_cache_retention": "in-memory",
    }  # fmt: skip
    plain = ok(talker, "/v1/responses", input="A cat", temperature=0, max_output_tokens=6)
    got = ok(talker, "/v1/responses", input="A cat", temperature=0, max_output_tokens=6, **sent)
    assert got["output"][0]["content"] == plain["output"][0]["content"]
    assert got["text"] == {"format": {"type": "text"}}


def test_a_request_may_name_its_reply(talker: Running) -> None:
    named = {"request_id": "mine-1", **GREEDY}
    assert ok(talker, CHAT, messages=TALK, **named)["id"] == "chatcmpl-mine-1"
    assert ok(talker, TEXT, prompt="Once", **named)["id"] == "cmpl-mine-1"
    assert ok(talker, "/v1/embeddings", input="x", request_id="v")["id"] == "embd-v"


@pytest.mark.parametrize(("side", "most"), [("left", 5), ("right", 5), (None, 5), (None, 500)])
def test_prompts_are_truncated_on_request(talker: Running, side: str | None, most: int) -> None:
    ids = ids_of(talker, prompt=LONG)
    kept = ids[:most] if side == "right" else ids[-most:]
    cut = {"truncate_prompt_tokens": most, "truncation_side": side}
    same = ok(talker, TEXT, prompt=kept, **GREEDY)["choices"][0]["text"]
    got = ok(talker, TEXT, prompt=LONG, **GREEDY, **cut, return_token_ids=True)["choices"][0]
    assert got["prompt_token_ids"] == kept and got["text"] == same
    one, two = (
        ok(talker, "/v1/embeddings", input=given, **more)["data"][0]["embedding"]
        for given, more in ((LONG, cut), (kept, {}))
    )
    assert one == two
    said = ids_of(talker, messages=TALK)
    got = ok(talker, CHAT, messages=TALK, **GREEDY, **cut, return_token_ids=True)
    assert got["prompt_token_ids"] == (said[:most] if side == "right" else said[-most:])


def test_as_much_of_a_prompt_as_fits(talker: Running) -> None:
    for path, body, most in ((TEXT, {"prompt": LONG * 99, "max_tokens": 1}, 511),
                             (CHAT, {"messages": [{"role": "user", "content": LONG * 99}]}, 511),
                             ("/v1/embeddings", {"input": LONG * 99}, 512)):  # fmt: skip
        assert talker.post(path, body).status == 400
        got = ok(talker, path, **body, truncate_prompt_tokens=-1)
        assert got["usage"]["prompt_tokens"] == most


def test_a_conversation_has_a_vector(talker: Running) -> None:
    said = ids_of(talker, messages=TALK, add_generation_prompt=False)
    one = ok(talker, "/v1/embeddings", messages=TALK)
    two = ok(talker, "/v1/embeddings", input=said)
    assert one["data"] == two["data"]
    assert talker.post("/v1/embeddings", {"messages": TALK, "input": "x"}).status == 400


def test_chats_may_begin_with_special_tokens(talker: Running) -> None:
    plain = ok(talker, CHAT, messages=TALK, **GREEDY, return_token_ids=True)["prompt_token_ids"]
    more = {"add_special_tokens": True, "return_token_ids": True}
    begun = ok(talker, CHAT, messages=TALK, **GREEDY, **more)["prompt_token_ids"]
    assert begun[1:] == plain and begun[0] == ids_of(talker, prompt="x")[0]


def test_chunks_may_hold_several_tokens(talker: Running) -> None:
    body = {"prompt": "Once", "temperature": 0, "max_tokens": 9, "return_token_ids": True}
    whole = ok(talker, TEXT, **body)["choices"][0]
    got = talker.post(TEXT, {**body, "stream": True, "stream_interval": 4}).events
    parts = [c for e in got for c in e["choices"]]
    assert all(len(c["token_ids"]) >= 4 for c in parts[1:-1])
    assert "".join(c["text"] for c in parts) == whole["text"] and len(parts) <= 4


def test_a_beam_search_is_the_librarys(server: Running) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=8, length_penalty=0.5)
    (found,) = LLM().beam_search("Once upon a time", params, use_tqdm=False)
    beams = [one.text for one in found.outputs]
    requested = {"prompt": "Once upon a time", "max_tokens": 8, "use_beam_search": True,
             "length_penalty": 0.5}  # fmt: skip
    got = ok(server, TEXT, **requested, n=4)
    assert [one["text"] for one in got["choices"]] == beams and len(set(beams)) == 4
    best = ok(server, TEXT, **requested, n=2, best_of=4, temperature=0)
    assert [one["text"] for one in best["choices"]] == beams[:2]
    talk = [{"role": "user", "content": "Once upon a time"}]
    said = ok(
        server, CHAT, messages=talk, **{k: v for k, v in requested.items() if k != "prompt"}, n=4
    )
    assert [one["message"]["content"] for one in said["choices"]] == beams


@pytest.mark.parametrize("best", [None, 5])
def test_a_search_streams_each_answer_in_one_chunk(server: Running, best: int | None) -> None:
    requested = {"max_tokens": 8, "use_beam_search": True, "n": 3, "best_of": best}
    text = {"prompt": ["Once upon a time", "A cat sat."], **requested}
    whole = ok(server, TEXT, **text)
    *events, last = server.post(TEXT, {**text, **STREAM}).events
    chunks = [event["choices"][0] for event in events]
    assert sorted(chunks, key=lambda c: c["index"]) == whole["choices"] and len(chunks) == 6
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    del requested["best_of"]  # which chats have not
    talk = {"messages": TALK, **requested}
    said = ok(server, CHAT, **talk)
    *events, last = server.post(CHAT, {**talk, **STREAM}).events
    chunks = [event["choices"][0] for event in events]
    ends = [chunk for chunk in chunks if chunk["finish_reason"]]
    assert len(chunks) == 6 and len(ends) == 3  # one says who speaks
    for one in said["choices"]:
        (end,) = [chunk for chunk in ends if chunk["index"] == one["index"]]
        assert end["delta"]["content"] == one["message"]["content"]
        assert end["finish_reason"] == one["finish_reason"]


def prompt_of(server: Running, path: str, **body: Any) -> int:
    return int(ok(server, path, **body)["input_tokens"])


def test_anthropics_thinking_and_effort(thinker: Running, talker: Running) -> None:
    on = {"thinking": {"type": "enabled", "budget_tokens": 4}}
    base = {"model": "m", "messages": TALK}
    assert ok(thinker, "/v1/messages", **base, max_tokens=6, **on)["type"] == "message"
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    seen = len(ids_of(thinker, messages=TALK, **kwargs))
    assert prompt_of(thinker, "/v1/messages/count_tokens", **base, **on) == seen
    got = thinker.post("/v1/messages", {**base, "max_tokens": 4, **on})
    assert got.status == 400 and "thinking.budget_tokens = 4" in got.json["error"]["message"]
    name = talker.get("/v1/models").json["data"][0]["id"]
    got = talker.post("/v1/messages", {**base, "model": name, "max_tokens": 9, **on})
    assert got.status == 400 and "thinking.type = 'enabled'" in got.json["error"]["message"]
    effort = {"output_config": {"effort": "low"}}
    spent = ok(thinker, "/v1/messages", **base, max_tokens=2, **effort)["usage"]
    reported = ok(thinker, CHAT, messages=TALK, max_tokens=2, reasoning_effort="low")["usage"]
    assert spent["input_tokens"] + spent["cache_read_input_tokens"] == reported["prompt_tokens"]
    counted = prompt_of(thinker, "/v1/messages/count_tokens", **base, **effort)
    assert counted == reported["prompt_tokens"]


def test_ollamas_levels_of_thought(thinker: Running) -> None:
    more = {"model": "m", "messages": TALK, "stream": False, "options": {"num_predict": 2}}
    got = ok(thinker, "/api/chat", **more, think="low")["prompt_eval_count"]
    kwargs = {"enable_thinking": True, "reasoning_effort": "low"}
    assert got == len(ids_of(thinker, messages=TALK, chat_template_kwargs=kwargs))
    assert got != ok(thinker, "/api/chat", **more)["prompt_eval_count"]


def test_verbosity_goes_to_the_template(thinker: Running) -> None:
    got = thinker.post("/apply-template", {"messages": TALK, "verbosity": "high"}).json["prompt"]
    assert got.endswith("|high")
