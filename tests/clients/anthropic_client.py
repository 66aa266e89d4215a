"""Anthropic's Python client over /v1/messages: `anthropic_client.py URL MODEL KEY`."""

import asyncio
import json
import sys
from typing import Literal

from anthropic import (
    Anthropic,
    APIStatusError,
    AsyncAnthropic,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
)
from pydantic import BaseModel, ConfigDict

TALK = [{"role": "user", "content": "A cat sat."}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
TOOL = {"name": "weather", "description": "What it is like.", "input_schema": CITY}


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    asleep: bool
    legs: Literal[3, 4]


def messages(client: Anthropic, model: str) -> None:
    given = {
        "model": model,
        "messages": TALK,
        "system": "Be kind.",
        "max_tokens": 16,
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**given)
    (block,) = whole.content
    assert block.type == "text" and block.text and whole.stop_reason == "max_tokens"
    with client.messages.stream(**given) as stream:
        said = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert said == block.text == last.content[0].text
    assert last.usage.output_tokens == 16 and last.stop_reason == "max_tokens"
    counted = client.messages.count_tokens(model=model, messages=TALK, system="Be kind.")
    spent = last.usage
    assert counted.input_tokens == spent.input_tokens + spent.cache_read_input_tokens
    word = block.text.split()[2]
    stopped = client.messages.create(**given, stop_sequences=[word])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word


def tools(client: Anthropic, model: str) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]},
              "why": {"type": "string", "maxLength": 30}}, "required": ["city", "why"]}  # fmt: skip
    given = {
        "model": model,
        "messages": TALK,
        "max_tokens": 120,
        "tools": [{"name": "weather", "description": "Tells it.", "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "weather"},
    }
    (block,) = client.messages.create(**given).content
    assert block.type == "tool_use" and block.input["city"] in ("Rome", "Oslo")
    with client.messages.stream(**given) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        last = stream.get_final_message()
    (block,) = last.content
    assert len(parts) > 2, "arguments come in pieces"
    assert json.loads("".join(parts)) == block.input and set(block.input) == {"city", "why"}
    assert block.type == "tool_use" and block.name == "weather" and block.id
    assert last.stop_reason == "tool_use"


def tool_results(client: Anthropic, model: str) -> None:
    """The result of a call is sent in turn, and counted."""
    choice = {"type": "any", "disable_parallel_tool_use": True}
    given = {"model": model, "messages": TALK, "max_tokens": 100, "tools": [TOOL],
             "tool_choice": choice, "extra_body": {"temperature": 0}}  # fmt: skip
    whole = client.messages.create(**given)
    (call,) = whole.content
    assert call.type == "tool_use" and call.input["city"] in ("Rome", "Oslo")
    came = {"type": "tool_result", "tool_use_id": call.id, "content": "Sun."}
    said = {"role": "assistant", "content": [call.model_dump(exclude_none=True)]}
    after = [*TALK, said, {"role": "user", "content": [came]}]
    reported = {**given, "messages": after, "tool_choice": {"type": "none"}, "max_tokens": 4}
    assert client.messages.create(**reported).content[0].text
    counted = client.messages.count_tokens(model=model, messages=TALK, tools=[TOOL])
    bare = client.messages.count_tokens(model=model, messages=TALK)
    assert counted.input_tokens > bare.input_tokens


def structured(client: Anthropic, model: str) -> None:
    given = {"model": model, "messages": TALK, "max_tokens": 100}
    found = client.messages.parse(**given, output_format=Cat)
    assert isinstance(found.parsed_output, Cat)


async def at_once(url: str, model: str, key: str) -> None:
    """Several streams of one asynchronous client, with parts and a system prompt of blocks."""
    system = [{"type": "text", "text": "Be kind."}]
    talk = [{"role": "user", "content": [{"type": "text", "text": "A cat sat."}]}]
    async with AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:

        async def one() -> str:
            given = {"model": model, "messages": talk, "system": system, "max_tokens": 12}
            async with client.messages.stream(**given, extra_body={"temperature": 0}) as stream:
                return "".join([text async for text in stream.text_stream])

        found = await asyncio.gather(*(one() for _ in range(4)))
    assert len(set(found)) == 1 and found[0]


def refusals(client: Anthropic, url: str, model: str) -> None:
    for field, kind in (
        ({"model": "nothing"}, NotFoundError),
        ({"max_tokens": 0}, BadRequestError),
    ):
        given = {"model": model, "messages": TALK, "max_tokens": 4, **field}
        try:
            client.messages.create(**given)
        except kind as error:
            assert error.body["type"] == "error"
        else:
            raise AssertionError(f"{field} was taken")
    try:
        large = [{"role": "user", "content": "a" * (9 << 20)}]
        client.messages.create(model=model, messages=large, max_tokens=4)
    except APIStatusError as error:
        assert error.status_code == 413
    else:
        raise AssertionError("9 MiB were taken")
    stranger = Anthropic(base_url=url, api_key="wrong", max_retries=0)
    try:
        stranger.messages.create(model=model, messages=TALK, max_tokens=4)
    except AuthenticationError as error:
        assert error.body["error"]["type"] == "authentication_error"
    else:
        raise AssertionError("a wrong key was taken")


def main() -> None:
    url, model, key = sys.argv[1:]
    client = Anthropic(base_url=url, api_key=key, max_retries=0)
    messages(client, model)
    tools(client, model)
    tool_results(client, model)
    structured(client, model)
    refusals(client, url, model)
    asyncio.run(at_once(url, model, key))


if __name__ == "__main__":
    main()
