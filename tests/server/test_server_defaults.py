"""What an operator sets for requests that do not say: switches of the template, and sampling."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import chat_model
from http_server import Running, started

CHAT, APPLY = "/v1/chat/completions", "/apply-template"
TALK = [{"role": "user", "content": "Hi"}]
SWITCHED = (
    "Hi{% if enable_thinking is defined %}"
    "|{{ 'Think twice' if enable_thinking else 'No' }}{% endif %}"
)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = chat_model.write(tmp_path_factory.mktemp("quiet") / "quiet.gguf", SWITCHED)
    with started(
        str(path), "--max-model-len", "256",
        "--default-chat-template-kwargs", '{"enable_thinking": false}',
        "--override-generation-config", '{"temperature": 0.3, "top_k": 7, "max_new_tokens": 5}',
    ) as running:  # fmt: skip
        yield running


def prompt(server: Running, **fields: Any) -> str:
    text: str = server.post(APPLY, {"messages": TALK, **fields}).json["prompt"]
    return text


def test_a_switch_is_the_operators_where_a_request_does_not_say(quiet: Running) -> None:
    assert prompt(quiet) == "Hi|No"
    assert prompt(quiet, chat_template_kwargs={"enable_thinking": True}) == "Hi|Think twice"
    assert prompt(quiet, reasoning_effort="high") == "Hi|Think twice"
    assert quiet.post("/tokenize", {"messages": TALK}).json["count"] == sizes(quiet)[0]


def sizes(server: Running) -> list[int]:
    """Tokens of the prompt without thinking, and with it."""
    bodies = [{"prompt": text, "add_special_tokens": False} for text in ("Hi|No", "Hi|Think twice")]
    return [server.post("/tokenize", body).json["count"] for body in bodies]


def test_other_apis_leave_it_to_the_operator(quiet: Running) -> None:
    model = quiet.get("/v1/models").json["data"][0]["id"]
    silent, loud = sizes(quiet)
    assert silent != loud
    said = {"model": model, "messages": TALK, "max_tokens": 1}
    for fields in ({}, {"thinking": {"type": "adaptive"}}):
        got = quiet.post("/v1/messages", {**said, **fields}).json
        assert got["usage"]["input_tokens"] == silent, fields
    said = {"model": model, "messages": TALK, "stream": False, "options": {"num_predict": 1}}
    for think, count in ((None, silent), (True, loud), (False, silent)):
        fields = {} if think is None else {"think": think}
        assert quiet.post("/api/chat", {**said, **fields}).json["prompt_eval_count"] == count


def test_sampling_is_the_operators_where_a_request_does_not_say(quiet: Running) -> None:
    def reported(**fields: Any) -> dict[str, Any]:
        body = {"prompt": "Hi", "n_predict": 1, **fields}
        found: dict[str, Any] = quiet.post("/completion", body).json["generation_settings"]
        return found

    assert (reported()["temperature"], reported()["top_k"]) == (0.3, 7)
    assert reported(temperature=0.9)["temperature"] == 0.9
    got = quiet.post("/completion", {"prompt": "Hi", "ignore_eos": True}).json
    assert (got["tokens_predicted"], got["generation_settings"]["n_predict"]) == (5, 5)
    more = {"prompt": "Hi", "ignore_eos": True, "n_predict": -1}
    assert quiet.post("/completion", more).json["tokens_predicted"] > 200, "to the end of the room"
    assert quiet.post("/generate", {"prompt": "Hi", "seed": 1}).json["tokens"] == 5
    assert quiet.post("/generate", {"prompt": "Hi", "seed": 1, "max_tokens": 9}).json["tokens"] == 9
    body = {"messages": TALK, "ignore_eos": True}
    usage = quiet.post(CHAT, body).json["usage"]
    assert usage["completion_tokens"] == 5
    usage = quiet.post(CHAT, {**body, "max_tokens": 9}).json["usage"]
    assert usage["completion_tokens"] == 9


def test_the_effective_configuration_has_both(quiet: Running) -> None:
    rows = {r["feature"]: r for r in quiet.get("/v1/engine/effective").json["features"]}
    assert rows["--default-chat-template-kwargs"]["effective"] == "enable_thinking = false"
    assert rows["--override-generation-config"]["effective"].startswith("temperature = 0.3")


def test_a_switch_that_no_template_reads_is_refused_at_the_start(
    refusal: Callable[..., str],
) -> None:
    given = ["--default-chat-template-kwargs", '{"enable_thinking": false}']
    last = refusal("--port", "0", *given).splitlines()[-1]
    assert last.startswith("error: --default-chat-template-kwargs: 'enable_thinking' has no effect")
