"""Anthropic's Python client over /v1/messages: `anthropic_client.py URL`."""

import json
import sys

from anthropic import Anthropic, AuthenticationError, BadRequestError, NotFoundError

TALK = [{"role": "user", "content": "A cat sat."}]


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
    refusals(client, url, model)


if __name__ == "__main__":
    main()
