"""Reasoning with a budget, over HTTP: closed after so many tokens, in both dialects that ask so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chat_model
from flyweight import LLM, RequestError, SamplingParams
from http_server import Running, started

TALK = [{"role": "user", "content": "A cat sat."}]
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
OPENED = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>{% endif %}{# </think> #}"
)
ASKED = {"messages": TALK, "temperature": 0, "max_tokens": 40, "return_token_ids": True,
         "ignore_eos": True}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model inside with a template that begins reasoning, which it would never end."""
    return chat_model.write(tmp_path_factory.mktemp("budget") / "opened.gguf", OPENED)


@pytest.fixture(scope="module")
def thinker(path: Path) -> Iterator[Running]:
    guesses = '{"method": "ngram", "num_speculative_tokens": 4}'
    words = ("--max-model-len", "512", "--served-model-name", "m", "--speculative-config", guesses)
    with started(str(path), *words) as running:
        yield running


def said(server: Running, **more: Any) -> dict[str, Any]:
    got = server.post(CHAT, {**ASKED, **more})
    assert got.status == 200, got.body
    found: dict[str, Any] = got.json["choices"][0]
    return found


def length(server: Running, text: str) -> int:
    body = {"prompt": text, "add_special_tokens": False}
    return len(server.post("/tokenize", body).json["tokens"])


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_reasoning_is_closed_after_its_budget(thinker: Running, budget: int) -> None:
    free, kept = said(thinker), said(thinker, thinking_token_budget=budget)
    assert free["message"]["content"] == "" and free["message"]["reasoning"]
    mark = length(thinker, "</think>")
    assert kept["token_ids"][:budget] == free["token_ids"][:budget]
    text = thinker.post("/detokenize", {"tokens": kept["token_ids"][budget : budget + mark]})
    assert text.json["prompt"].strip() == "</think>"
    assert kept["message"]["content"] and len(kept["token_ids"]) == 40
    assert bool(kept["message"].get("reasoning")) == (budget > 0)
    events = thinker.post(CHAT, {**ASKED, "thinking_token_budget": budget, "stream": True}).events
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    for name in ("content", "reasoning"):
        joined = "".join(delta.get(name) or "" for delta in deltas)
        assert joined == (kept["message"].get(name) or "")


def test_a_response_is_cut_off_in_its_last_item(thinker: Running) -> None:
    """The thought before it is complete, whole and in a stream, however the steps come."""
    body = {"input": "A cat sat.", "temperature": 0, "ignore_eos": True,
            "thinking_token_budget": 4, "max_output_tokens": 40}  # fmt: skip
    for more in (body, {**body, "max_output_tokens": 3}):
        whole = thinker.post("/v1/responses", more).json
        last = thinker.post("/v1/responses", {**more, "stream": True}).events[-1]["response"]
        reported = [[item["status"] for item in one["output"]] for one in (whole, last)]
        first = [] if more["max_output_tokens"] == 3 else ["completed"]
        assert reported == [[*first, "incomplete"]] * 2


def test_what_is_not_reached_changes_nothing(thinker: Running) -> None:
    free = said(thinker)
    for budget in (40, -1, None):
        assert said(thinker, thinking_token_budget=budget)["token_ids"] == free["token_ids"]


def test_a_message_that_goes_on_is_the_same_in_parts(thinker: Running) -> None:
    """Its echo, the thought it has begun, and what that has spent."""
    parts = [{"type": "text", "text": one} for one in ("So:", "<think> A cat")]
    found = []
    for content in ("So:\n<think> A cat", parts):
        talk = [*TALK, {"role": "assistant", "content": content, "prefix": True}]
        more = {"messages": talk, "add_generation_prompt": False, "thinking_token_budget": 6}
        found.append(said(thinker, **more, echo=True))
    assert found[0] == found[1]
    message = found[1]["message"]
    assert message["reasoning"] and message["content"].startswith("So:\n<think> A cat")


def test_every_choice_has_a_budget_of_its_own(thinker: Running) -> None:
    body = {**ASKED, "temperature": 1, "seed": 1, "n": 3, "thinking_token_budget": 4}
    found = thinker.post(CHAT, body).json["choices"]
    marks = {tuple(one["token_ids"][4 : 4 + length(thinker, "</think>")]) for one in found}
    assert len(marks) == 1 and len({tuple(one["token_ids"]) for one in found}) == 3


def test_a_thought_that_the_answer_opens(thinker: Running) -> None:
    """A grammar says how it begins, and has the last word on how it ends."""
    plain = {"add_generation_prompt": False, "max_tokens": 60, "thinking_token_budget": 3}
    form = {"structured_outputs": {"regex": r"<think>[a-z ]{0,30}(</think>[a-z]{5})?"}}
    message = said(thinker, **plain, **form)["message"]
    assert len(message["content"]) == 5 and len(message["reasoning"]) < 30
    form = {"structured_outputs": {"regex": r"<think>[a-z]{30}</think>[a-z]{5}"}}
    message = said(thinker, **plain, **form)["message"]
    assert (len(message["content"]), len(message["reasoning"])) == (5, 30)


def test_a_form_without_the_mark_is_kept_to(thinker: Running) -> None:
    """All of such an answer is content, whatever the prompt has opened."""
    for form in ({"regex": "[a-z]{12}"}, {"choice": ["yes indeed", "not at all"]}):
        message = said(thinker, thinking_token_budget=2, structured_outputs=form)["message"]
        assert len(message["content"]) in (10, 12) and not message.get("reasoning")


def test_a_demanded_call_comes_after_it(thinker: Running) -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    requested = {"tools": [tool], "tool_choice": "required", "max_tokens": 200, "ignore_eos": False,
             "parallel_tool_calls": False}  # fmt: skip
    free = said(thinker, **requested)
    kept = said(thinker, **requested, thinking_token_budget=5)
    assert kept["finish_reason"] == "tool_calls"
    assert kept["message"]["tool_calls"][0]["function"]["name"] == "now"
    thought = kept["message"]["reasoning"]
    assert free["message"]["reasoning"].startswith(thought) and length(thinker, thought) <= 6


def test_anthropics_budget_is_kept(thinker: Running) -> None:
    body = {"model": "m", "messages": TALK, "max_tokens": 40, "temperature": 0,
            "thinking": {"type": "enabled", "budget_tokens": 6}}  # fmt: skip
    # its template has no switch, and reasons as it is
    got = thinker.post(MESSAGES, body)
    assert got.status == 200, got.body
    thought, text = got.json["content"]
    same = said(thinker, thinking_token_budget=6, ignore_eos=False)["message"]
    assert (thought["thinking"], text["text"]) == (same["reasoning"], same["content"])


@pytest.mark.parametrize("value", [-2, 1.5, "4", True])
def test_what_is_out_of_range_is_refused(thinker: Running, value: Any) -> None:
    got = thinker.post(CHAT, {**ASKED, "thinking_token_budget": value})
    assert got.status == 400 and got.json["error"]["param"] == "thinking_token_budget"


def test_what_cannot_be_kept_is_refused(thinker: Running, talker: Running) -> None:
    got = talker.post(CHAT, {"messages": TALK, "thinking_token_budget": 4})
    assert got.status == 400 and "answers have no reasoning" in got.json["error"]["message"]
    form = {"response_format": {"type": "json_object"}}
    got = thinker.post(CHAT, {**ASKED, "thinking_token_budget": 4, **form})
    assert got.status == 400 and got.json["error"]["param"] == "thinking_token_budget"
    form = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    body = {"model": "m", "messages": TALK, "max_tokens": 40, **form,
            "thinking": {"type": "enabled", "budget_tokens": 6}}  # fmt: skip
    got = thinker.post(MESSAGES, body)
    assert got.status == 400 and "thinking.budget_tokens = 6" in got.json["error"]["message"]


def test_the_librarys_chat_has_one_too(path: Path, thinker: Running) -> None:
    llm = LLM(str(path), max_model_len=512)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, thinking_token_budget=7)
    (out,) = llm.chat(TALK, params, use_tqdm=False)
    assert out.outputs[0].token_ids == said(thinker, thinking_token_budget=7)["token_ids"]
    with pytest.raises(RequestError, match="answers have no reasoning"):
        LLM().generate("Once", params, use_tqdm=False)
