"""OpenAI's Python client over every endpoint it has that is served here: `openai_client.py URL`.

Written for the 1.x line and later; asserts, and says nothing where all is well.
"""

import asyncio
import json
import sys

from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

TALK = [{"role": "user", "content": "A cat sat."}]
GREEDY = {"temperature": 0, "max_tokens": 12}


def models(client: OpenAI) -> str:
    (card,) = client.models.list().data
    assert client.models.retrieve(card.id) == card
    try:
        client.models.retrieve("nothing")
    except NotFoundError as error:
        assert error.status_code == 404
    else:
        raise AssertionError("a model that is not there was found")
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
    try:
        client.chat.completions.create(**given, extra_body={"top_q": 1})
    except BadRequestError as error:
        assert error.param == "top_q" and "top_p" in error.message
    else:
        raise AssertionError("a field that is unknown was taken")


def chat_events(client: OpenAI, model: str) -> None:
    """The client's own joining of chunks, which takes no answer that was cut."""
    room = getattr(client.chat.completions, "stream", None) or client.beta.chat.completions.stream
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
    with client.responses.stream(**given, text={"format": {"type": "text"}}) as stream:
        for _ in stream:
            pass
    items = [{"role": "user", "content": [{"type": "input_text", "text": "A cat sat."}]}]
    again = client.responses.create(**{**given, "input": items})
    assert again.output_text == whole.output_text
    try:
        client.responses.create(**given, previous_response_id=whole.id)
    except BadRequestError as error:
        assert error.param == "previous_response_id"
    else:
        raise AssertionError("a response was remembered")


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


async def at_once(url: str, model: str) -> None:
    """Several streams of one asynchronous client."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

        async def one(prompt: str) -> str:
            stream = await client.completions.create(
                model=model, prompt=prompt, stream=True, **GREEDY
            )
            return "".join([part.choices[0].text async for part in stream])

        found = await asyncio.gather(*(one("Once upon a time") for _ in range(4)))
    assert len(set(found)) == 1 and found[0]


def main() -> None:
    url = sys.argv[1]
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = models(client)
    for over in (completions, chat, chat_events, embeddings, responses, called_responses):
        over(client, model)
    asyncio.run(at_once(url, model))


if __name__ == "__main__":
    main()
