"""Bodies that are valid JSON and ask for too much: refused by name, and at little cost."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel

import chat_model
from flyweight.errors import RequestError
from flyweight.server.apis.anthropic.messages import MessagesBody
from flyweight.server.apis.body import read_body as read_body
from flyweight.server.apis.llamacpp.completion import LlamaBody
from flyweight.server.apis.ollama.schema import OllamaChatBody
from flyweight.server.apis.openai.chat_schema import ChatBody
from flyweight.server.apis.openai.completions import CompletionBody
from flyweight.server.apis.openai.responses import ResponseBody
from flyweight.server.apis.routes import ROUTES
from flyweight.server.settings import ServerSettings
from http_server import Reply, Running, served, started

PROMPT = {"prompt": "Once", "max_tokens": 2}
TALK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
LONGEST = 512  # the model's context
FEW, MANY = 8_000, 100_000  # mistakes in a list: of objects, of numbers


def refusal(got: Reply, param: str | None = None) -> str:
    assert got.status == 400, (got.status, got.body[:300])
    error = got.json["error"]
    assert error["type"] == "invalid_request_error"
    assert param is None or str(error["param"]).split(".")[0] == param, error
    assert len(error["message"]) < 600
    found: str = error["message"]
    return found


def post(server: Running, **given: Any) -> Reply:
    return server.post("/v1/completions", {**PROMPT, **given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", 129), ("n", 2**63), ("n", 1.5), ("n", True), ("n", "2"), ("n", -1),
        ("best_of", 21), ("max_tokens", -1), ("max_tokens", 2**31), ("max_tokens", 1e300),
        ("logprobs", 21), ("prompt_logprobs", 10**18), ("temperature", -0.1),
        ("temperature", 1e308), ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("min_p", 2),
        ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
        ("seed", 2**63), ("min_tokens", 2**31), ("priority", 2**31), ("stop", ["x"] * 5),
        ("stop", [""]), ("stop", ["a" * 1025]), ("stop", [["x"]]), ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**31]), ("stop_token_ids", [1] * 2000),
        ("allowed_token_ids", []), ("allowed_token_ids", [10**6]), ("bad_words", ["x"] * 129),
        ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"5": 101}),
        ("logit_bias", {"999999999": 1}), ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("prompt", []), ("prompt", [[]]), ("prompt", [-1]), ("prompt", [2**31 - 1]),
        ("prompt", [1, "a"]), ("prompt", {"a": 1}), ("prompt", None), ("prompt", [["a"]]),
        ("prompt", ["x"] * 1025), ("prompt", [1.0]), ("prompt", [True]), ("stream", "yes"),
        ("dry_sequence_breakers", ["x"] * 65), ("mirostat", 3), ("cache_salt", ""),
        ("cache_salt", "a" * 1025), ("logits_processors", ["os.system"]), ("beam_width", 10**6),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(server: Running, name: str, value: Any) -> None:
    refusal(post(server, **{name: value}), name)


@pytest.mark.parametrize(
    "given",
    [
        {"n": 128, "prompt": ["a"] * 1024},
        {"n": 20, "best_of": 20, "prompt": ["a"] * 200},
        {"n": 1, "best_of": 20, "prompt": ["a"] * 1024},
    ],
)
def test_many_choices_of_many_prompts_are_refused(server: Running, given: dict[str, Any]) -> None:
    assert "2048" in refusal(post(server, **given), "n")


def test_many_tokens_of_many_choices_are_refused(chatty: Running) -> None:
    many = {"prompt": ["Once"] * 20, "max_tokens": 400, "n": 2}
    assert "5000" in refusal(post(chatty, **many), "max_tokens")
    assert post(chatty, **{**many, "max_tokens": 2}).status == 200
    # no more than the context has room for is counted
    assert post(chatty, prompt="Once", max_tokens=2**31 - 1, stop=["a"]).status == 200


def test_a_prompt_may_be_as_long_as_the_context_and_no_longer(server: Running) -> None:
    fits = post(server, prompt=[20] * (LONGEST - 1), max_tokens=1)
    assert fits.status == 200 and fits.json["usage"]["prompt_tokens"] == LONGEST - 1
    for longer in (LONGEST, LONGEST + 1, 100_000):
        assert str(LONGEST) in refusal(post(server, prompt=[20] * longer), "prompt")


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, "ab" * 3_900_000, " " * 1_000_000, "🔑" * 250_000, "é漢𝒳" * 100_000,
     "The cat sat on the mat. " * 40_000, "\n" * 1_000_000, "\u0300" * 500_000, "</s>" * 200_000],
    ids=["letter", "8 MB", "spaces", "emoji", "unicode", "words", "lines", "marks", "specials"],
)  # fmt: skip
def test_a_text_that_is_far_too_long_is_not_read_to_its_end(server: Running, text: str) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        got = server.post(path, body)
        assert got.status in (400, 413), got.body[:200]
    assert server.get("/health").status == 200


def crowds() -> Iterator[tuple[type[BaseModel], bytes]]:
    """For every list and object of a body, one with thousands of mistakes."""
    seen: set[tuple[str, str]] = set()
    for kind in {entry.body: None for entry in ROUTES if entry.body}:
        for name, field in kind.model_json_schema()["properties"].items():
            many = any(word in str(field) for word in ("array", "object", "$ref"))
            if many and (name, str(field)) not in seen:
                seen.add((name, str(field)))
                for item, times in ((b"{}", FEW), (b"[]", FEW), (b"1", MANY), (b"-1", MANY)):
                    yield kind, b'{"%s": [%s]}' % (name.encode(), b",".join([item] * times))
    parts = b",".join([b"1"] * MANY)
    for kind, before in (
        (ChatBody, b'"messages": [{"role": "user", "content"'),
        (ChatBody, b'"messages": [{"role": "assistant", "tool_calls"'),
        (MessagesBody, b'"max_tokens": 1, "messages": [{"role": "user", "content"'),
        (ResponseBody, b'"input": [{"role": "user", "content"'),
        (ResponseBody, b'"input": [{"type": "reasoning", "content"'),
        (OllamaChatBody, b'"messages": [{"role": "assistant", "tool_calls"'),
    ):
        yield kind, b"{%s: [%s]}]}" % (before, parts)
    yield LlamaBody, b'{"prompt": [[%s]]}' % b",".join([b"-1"] * MANY)


def spent(work: Callable[[], object]) -> float:
    """Seconds of this thread's."""
    before = time.thread_time()
    work()
    return time.thread_time() - before


def test_many_mistakes_cost_little() -> None:
    """To list what is wrong with each of a million items took minutes: a body costs at most ten
    times what it takes to parse twenty thousand small objects.  The best of three counts where one
    takes longer: a full garbage collection may fall into it.
    """
    small = json.dumps([{"a": i, "b": [1.5, "x"]} for i in range(20_000)])
    unit = min(spent(lambda: json.loads(small)) for _ in range(5))
    settings = ServerSettings()
    for kind, raw in crowds():

        def read(raw: bytes = raw, kind: Any = kind) -> None:
            with suppress(RequestError):
                read_body(settings, None, raw, kind)  # type: ignore[arg-type]

        took = spent(read)
        if took >= 10 * unit:
            took = min(spent(read) for _ in range(3))
        assert took < 10 * unit, (kind, raw[:40], took, unit)
    for item in (b"{}", b'"a"', b'{"a":1}'):
        raw = b'{"prompt": [%s]}' % b",".join([item] * 200_000)
        with pytest.raises(RequestError, match="values, token ids not counted"):
            read_body(settings, None, raw, CompletionBody)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = chat_model.write(
        tmp_path_factory.mktemp("chatty") / "m.gguf",
        "{% if loop %}{% for i in range(999999999) %}{% endfor %}{% endif %}"
        "{% if grow %}{% set x = ('a' * grow) %}{{ x }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ name }}",
    )
    with served({"model": str(path)}, {"max_request_tokens": 5000}) as running:
        yield running


@pytest.mark.parametrize(
    "given",
    [{"x": []}, {"x": {}}, {"x": {"__class__": 1}}, {"x": "a" * 5000}, {"a" * 65: 1},
     {str(i): 1 for i in range(33)}, {"messages": "x"}, {"tools": 1}],
)  # fmt: skip
def test_only_plain_switches_reach_a_template(chatty: Running, given: dict[str, Any]) -> None:
    got = chatty.post("/v1/chat/completions", {**TALK, "chat_template_kwargs": given})
    refusal(got, "chat_template_kwargs")


@pytest.mark.parametrize("given", [{"loop": True}, {"grow": 10**9}, {"grow": 10**30}])
def test_a_template_that_knows_no_end_is_stopped(chatty: Running, given: dict[str, Any]) -> None:
    got = chatty.post("/v1/chat/completions", {**TALK, "chat_template_kwargs": given})
    assert got.status == 400, got.body
    assert chatty.get("/health").status == 200
    plain = {**TALK, "chat_template_kwargs": {"name": "{{ 7 * 7 }}"}}
    assert chatty.post("/v1/chat/completions", plain).status == 200


def test_no_template_of_a_request_is_taken(chatty: Running) -> None:
    refusal(chatty.post("/v1/chat/completions", {**TALK, "chat_template": "x"}), "chat_template")


@pytest.mark.parametrize(
    "name", ["longest", "tokenizer", "template", "add_special", "bounds", "messages", "tools"]
)
def test_no_switch_is_an_argument_of_ours(chatty: Running, name: str) -> None:
    given = {**TALK, "chat_template_kwargs": {name: 1}}
    for path in ("/v1/chat/completions", "/apply-template", "/v1/chat/completions/input_tokens"):
        refusal(chatty.post(path, given), "chat_template_kwargs")


LIMITED = (
    "--max-choices 3 --max-stop-strings 16 --max-stop-bytes 2KiB --max-logprobs 64 "
    "--max-logit-bias 2 --max-tools 130 --template-timeout 0.2 --max-template-growth 1 "
    "--max-schema-bytes 200"
)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose limits are its own; it logs at each event."""
    path = chat_model.write(
        tmp_path_factory.mktemp("limited") / "m.gguf",
        "{% for i in range(loop or 0) %}{% endfor %}"
        "{% for i in range(times or 1) %}{{ messages[0].content }}{% endfor %}"
        "{{ (tools or []) | length }}",
    )
    with started(str(path), *LIMITED.split()) as running:
        yield running


def tool(i: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{i}"}}


@pytest.mark.parametrize(
    ("name", "fits", "beyond"),
    [
        ("n", 3, 4), ("n_cmpl", 3, 4), ("stop", ["x"] * 16, ["x"] * 17),
        ("stop", "é" * 1024, "é" * 1025), ("stop", ["漢" * 682], ["a", "漢" * 683]),
        ("logprobs", 64, 65), ("prompt_logprobs", 64, 65), ("top_logprobs", 64, 65),
        ("n_probs", 64, 65), ("logit_bias", {"5": 1, "6": 1}, {"5": 1, "6": 1, "7": 1}),
        ("tools", [tool(i) for i in range(130)], [tool(i) for i in range(131)]),
        ("structured_outputs", {"regex": "a" * 150}, {"regex": "a" * 300}),
        ("chat_template_kwargs", {"times": 1000}, {"times": 20_000}),
        ("chat_template_kwargs", {"loop": 10}, {"loop": 1_000_000}),
    ],
)  # fmt: skip
def test_limits_are_options(limited: Running, name: str, fits: Any, beyond: Any) -> None:
    """What is within them is answered, what is beyond refused by the name the client has for it."""
    chat = name in ("top_logprobs", "tools", "chat_template_kwargs")
    path = "/v1/chat/completions" if chat else "/v1/completions"
    path = "/completion" if name in ("n_cmpl", "n_probs") else path
    body: dict[str, Any] = {"messages": TALK["messages"]} if chat else {"prompt": "Once"}
    body["n_predict" if path == "/completion" else "max_tokens"] = 1
    body |= {"logprobs": True} if name == "top_logprobs" else {}
    if name == "chat_template_kwargs":
        body["messages"] = [{"role": "user", "content": "a b c " * 3}]
        path = "/apply-template"
    got = limited.post(path, {**body, name: fits})
    too_long = got.status == 400 and "max_model_len" in got.body.decode()  # it was rendered
    assert got.status == 200 or (too_long and name == "chat_template_kwargs"), got.body[:300]
    where = "messages" if name == "chat_template_kwargs" else name
    refusal(limited.post(path, {**body, name: beyond}), where)


def test_more_log_probabilities_are_all_there(limited: Running) -> None:
    choice = post(limited, logprobs=64, temperature=0).json["choices"][0]["logprobs"]
    for token, best in zip(choice["tokens"], choice["top_logprobs"], strict=True):
        assert len(best) > 60 and max(best, key=best.get) == token  # some are spelled alike


def test_the_document_has_the_limits(limited: Running) -> None:
    found = limited.get("/openapi.json")
    schemas = found.json["components"]["schemas"]
    assert b"x-limit" not in found.body
    whole, _ = schemas["CompletionBody"]["properties"]["logprobs"]["anyOf"]
    assert whole["maximum"] == 64
    assert schemas["LlamaBody"]["properties"]["n_probs"]["maximum"] == 64
    stops = schemas["ChatBody"]["properties"]["stop"]["anyOf"]
    assert [one.get("maxItems") for one in stops] == [None, 16, None]
    biases, _ = schemas["ChatBody"]["properties"]["logit_bias"]["anyOf"]
    assert biases["maxProperties"] == 2


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://169.254.169.254/"}},
    ],
)
def test_nothing_is_fetched(chatty: Running, part: dict[str, Any]) -> None:
    talk = [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    message = refusal(chatty.post("/v1/chat/completions", {"messages": talk}), "messages")
    assert message.endswith("'output_text'; images and files are not supported")
