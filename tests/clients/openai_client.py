"""OpenAI's Python client over every endpoint that is served here: `openai_client.py URL MODEL KEY`.

Written for the 1.x line and later; asserts, and says nothing where all is well.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal
from urllib.request import Request, urlopen

from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
    PermissionDeniedError,
    RateLimitError,
    pydantic_function_tool,
)
from pydantic import BaseModel, ConfigDict

TALK = [{"role": "user", "content": "A cat sat."}]
GREEDY = {"temperature": 0, "max_tokens": 12}


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    asleep: bool
    legs: Literal[3, 4]


class Weather(BaseModel):
    """What it is like somewhere."""

    city: Literal["Rome", "Oslo"]


TOOL = pydantic_function_tool(Weather, name="weather")
NAMED = {"type": "function", "function": {"name": "weather"}}


def refused(kind: type[APIError], work: Callable[[], object]) -> APIError:
    """The error of `kind` itself that a call ends with."""
    try:
        work()
    except APIError as error:
        assert type(error) is kind, repr(error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def parsing(client: OpenAI) -> Any:
    """Where `parse` and `stream` are."""
    room = client.chat.completions
    return room if hasattr(room, "parse") else client.beta.chat.completions


def models(client: OpenAI) -> str:
    (card,) = client.models.list().data
    assert client.models.retrieve(card.id) == card
    refused(NotFoundError, lambda: client.models.retrieve("nothing"))
    return card.id


def completions(client: OpenAI, model: str) -> None:
    given = {"model": model, "prompt": ["Once upon a time", "A dog"], **GREEDY}
    whole = client.completions.create(**given, logprobs=2)
    assert [c.index for c in whole.choices] == [0, 1] and whole.usage.completion_tokens == 24
    assert len(whole.choices[0].logprobs.token_logprobs) == 12
    parts = list(client.completions.create(**given, stream=True))
    for choice in whole.choices:
        said = [c.text for part in parts for c in part.choices if c.index == choice.index]
        assert "".join(said) == choice.text


def chat(client: OpenAI, model: str) -> None:
    given = {"model": model, "messages": TALK, **GREEDY}
    whole = client.chat.completions.create(**given, logprobs=True, top_logprobs=2)
    (choice,) = whole.choices
    assert choice.finish_reason == "length" and len(choice.logprobs.content) == 12
    options = {"include_usage": True}
    parts = list(client.chat.completions.create(**given, stream=True, stream_options=options))
    said = "".join(c.delta.content or "" for part in parts for c in part.choices)
    assert said == choice.message.content and parts[-1].usage == whole.usage
    two = client.chat.completions.create(model=model, messages=TALK, n=2, seed=1, max_tokens=4)
    assert [c.index for c in two.choices] == [0, 1]
    biased = client.chat.completions.create(**given, logit_bias={"263": 100})
    assert biased.choices[0].message.content != choice.message.content
    raw = client.chat.completions.with_raw_response.create(**given)
    assert raw.headers["x-request-id"] and raw.parse().choices == [
        client.chat.completions.create(**given).choices[0]
    ]


def chat_events(client: OpenAI, model: str) -> None:
    """The client's own joining of chunks, which takes no answer that was cut."""
    room = parsing(client).stream
    whole = client.chat.completions.create(model=model, messages=TALK, **GREEDY)
    said = whole.choices[0].message.content
    word = said.split()[3]
    with room(model=model, messages=TALK, stop=[word], **GREEDY) as stream:
        kinds = {found.type for found in stream}
        last = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert last.choices[0].message.content == said[: said.index(word)]


def embeddings(client: OpenAI, model: str) -> None:
    packed = client.embeddings.create(model=model, input=["A cat", "A dog"])  # base64 on the wire
    plain = client.embeddings.create(model=model, input=["A cat", "A dog"], encoding_format="float")
    assert [d.embedding for d in packed.data] == [d.embedding for d in plain.data]
    short = client.embeddings.create(model=model, input="A cat", dimensions=8)
    assert len(short.data[0].embedding) == 8


def responses(client: OpenAI, model: str) -> None:
    given = {"model": model, "input": "A cat sat.", "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**given)
    assert whole.output_text and whole.status == "incomplete" and whole.usage.output_tokens == 12
    events = list(client.responses.create(**given, stream=True))
    said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert said == whole.output_text == events[-1].response.output_text
    scored = {**given, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    known = client.responses.create(**scored).output[0].content[0].logprobs
    assert len(known) == 12 and all(len(one.top_logprobs) == 2 for one in known)
    assert "".join(one.token for one in known) == whole.output_text
    reported = list(client.responses.create(**scored, stream=True))
    assert reported[-1].response.output[0].content[0].logprobs == known
    reported = [e.logprobs for e in reported if e.type == "response.output_text.delta"]
    assert [one.logprob for many in reported for one in many] == [one.logprob for one in known]
    with client.responses.stream(**scored) as stream:
        assert [e.logprobs for e in stream if e.type == "response.output_text.delta"] == reported
    with client.responses.stream(**given, text={"format": {"type": "text"}}) as stream:
        for _ in stream:
            pass
    items = [{"role": "user", "content": [{"type": "input_text", "text": "A cat sat."}]}]
    again = client.responses.create(**{**given, "input": items})
    assert again.output_text == whole.output_text
    more = {**given, "previous_response_id": whole.id}
    error = refused(BadRequestError, lambda: client.responses.create(**more))
    assert error.param == "previous_response_id"
    refused(NotFoundError, lambda: client.responses.retrieve(whole.id))


def called_responses(client: OpenAI, model: str) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]},
              "why": {"type": "string", "maxLength": 30}}, "required": ["city", "why"],
              "additionalProperties": False}  # fmt: skip
    given = {
        "model": model,
        "input": "A cat sat.",
        "max_output_tokens": 120,
        "tools": [{"type": "function", "name": "weather", "parameters": schema, "strict": True}],
        "tool_choice": {"type": "function", "name": "weather"},
    }
    with client.responses.stream(**given) as stream:
        parts = [e for e in stream if e.type == "response.function_call_arguments.delta"]
        last = stream.get_final_response()
    (item,) = last.output
    assert len(parts) > 2, "arguments come in pieces"
    assert "".join(part.delta for part in parts) == item.arguments == parts[-1].snapshot
    assert item.type == "function_call" and item.name == "weather" and item.status == "completed"
    assert set(json.loads(item.arguments)) == {"city", "why"}


def structured(client: OpenAI, model: str) -> None:
    """`.parse`, of a chat, of its stream and of a response."""
    room = parsing(client)
    given = {"model": model, "messages": TALK, "temperature": 0, "max_tokens": 100}
    found = room.parse(**given, response_format=Cat).choices[0].message.parsed
    assert isinstance(found, Cat)
    with room.stream(**given, response_format=Cat) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == found
    requested = {"model": model, "input": "A cat sat.", "temperature": 0, "max_output_tokens": 100}
    response = client.responses.parse(**requested, text_format=Cat)
    assert isinstance(response.output_parsed, Cat)
    loose = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": {"a": 1}}}}
    said = client.chat.completions.create(**given, response_format=loose)
    assert json.loads(said.choices[0].message.content) == {"a": 1}


def tools(client: OpenAI, model: str) -> None:
    """Named and required, whole, parsed and streamed; the result of a call is sent in turn."""
    room = parsing(client)
    given = {"model": model, "messages": TALK, "temperature": 0, "max_tokens": 100, "tools": [TOOL]}
    whole = client.chat.completions.create(**given, tool_choice=NAMED, parallel_tool_calls=False)
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "weather"
    Weather.model_validate_json(call.function.arguments)
    with room.stream(**given, tool_choice=NAMED, parallel_tool_calls=False) as stream:
        kinds = {found.type for found in stream}
        last = stream.get_final_completion().choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (streamed,) = last.message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    assert isinstance(streamed.function.parsed_arguments, Weather)
    parsed = room.parse(**given, tool_choice="required", parallel_tool_calls=False)
    found = parsed.choices[0].message
    assert isinstance(found.tool_calls[0].function.parsed_arguments, Weather)
    came = {"role": "tool", "tool_call_id": call.id, "content": "Sun."}
    after = [*TALK, whole.choices[0].message.model_dump(exclude_none=True), came]
    reported = {**given, "messages": after, "tool_choice": "none", "max_tokens": 4}
    assert client.chat.completions.create(**reported).choices[0].message.content


def response_tools(client: OpenAI, model: str) -> None:
    """The result of a call is sent in turn."""
    function = {"type": "function", "name": "weather", "parameters": Weather.model_json_schema(),
                "strict": True}  # fmt: skip
    given = {"model": model, "input": "A cat sat.", "temperature": 0, "max_output_tokens": 100,
             "tools": [function], "tool_choice": {"type": "function", "name": "weather"},
             "parallel_tool_calls": False}  # fmt: skip
    whole = client.responses.create(**given)
    (call,) = whole.output
    assert call.type == "function_call" and call.name == "weather"
    came = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun."}
    talk = [*TALK, call.model_dump(exclude_none=True), came]
    reported = {**given, "input": talk, "tool_choice": "none", "max_output_tokens": 4}
    assert client.responses.create(**reported).output_text


def errors(client: OpenAI, model: str) -> None:
    """Each refusal is of the class its status has."""
    given = {"model": model, "messages": TALK, "max_tokens": 4}
    create = client.chat.completions.create
    error = refused(BadRequestError, lambda: create(**given, extra_body={"top_q": 1}))
    assert error.param == "top_q" and "top_p" in error.message
    error = refused(BadRequestError, lambda: create(**given, temperature=-1))
    assert error.param == "temperature" and error.type == "invalid_request_error"
    assert error.request_id
    error = refused(NotFoundError, lambda: create(**{**given, "model": "nothing"}))
    assert error.code == "model_not_found"
    stranger = client.with_options(api_key="wrong")
    refused(AuthenticationError, stranger.models.list)
    refused(AuthenticationError, lambda: stranger.chat.completions.create(**given))
    page = client.with_options(default_headers={"Origin": "http://example.com"})
    refused(PermissionDeniedError, page.models.list)
    large = {"model": model, "prompt": "a" * (9 << 20), "max_tokens": 1}
    error = refused(APIStatusError, lambda: client.completions.create(**large))
    assert error.status_code == 413
    hasty = client.with_options(timeout=0.2)
    long = {**given, "max_tokens": 400, "extra_body": {"ignore_eos": True}, "n": 4}
    refused(APITimeoutError, lambda: hasty.chat.completions.create(**long))


def waiting(client: OpenAI) -> int:
    """Choices that wait to be computed."""
    requested = Request(
        f"{sys.argv[1]}/metrics", headers={"authorization": f"Bearer {client.api_key}"}
    )
    with urlopen(requested) as answer:
        rows = answer.read().decode().splitlines()
    (row,) = [row for row in rows if row.startswith("vllm:num_requests_waiting{")]
    return int(float(row.rsplit(" ", 1)[1]))


def full(client: OpenAI, model: str) -> None:
    """Four run, four wait: the next is one too many."""
    long = {"model": model, "prompt": "Once", "max_tokens": 400, "n": 4,
            "extra_body": {"ignore_eos": True}}  # fmt: skip
    first = client.completions.create(**long, stream=True)
    next(iter(first))
    second = threading.Thread(target=lambda: client.completions.create(**long))
    second.start()
    while waiting(client) < 4:
        assert second.is_alive()
    short = {"model": model, "prompt": "x", "max_tokens": 1}
    error = refused(RateLimitError, lambda: client.completions.create(**short))
    assert int(error.response.headers["retry-after"]) > 0
    first.close()
    second.join()
    assert client.completions.create(**short).choices


async def at_once(url: str, key: str, model: str) -> None:
    """Several streams of one asynchronous client."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:

        async def one(prompt: str) -> str:
            stream = await client.completions.create(
                model=model, prompt=prompt, stream=True, **GREEDY
            )
            return "".join([part.choices[0].text async for part in stream])

        found = await asyncio.gather(*(one("Once upon a time") for _ in range(4)))
    assert len(set(found)) == 1 and found[0]


def main() -> None:
    url, name, key = sys.argv[1:]
    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    model = models(client)
    assert model == name
    for over in (
        completions, chat, chat_events, structured, tools, embeddings, responses,
        called_responses, response_tools,
        errors, full,
    ):  # fmt: skip
        over(client, model)
    asyncio.run(at_once(url, key, model))


if __name__ == "__main__":
    main()
