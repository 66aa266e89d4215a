"""Ollama's Python client over /api: `ollama_client.py URL MODEL KEY`."""

import asyncio
import json
import os
import sys
from typing import Literal

from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

TALK = [{"role": "user", "content": "A cat sat."}]
GREEDY = {"temperature": 0, "num_predict": 12}


class Cat(BaseModel):
    asleep: bool
    legs: Literal[3, 4]


def weather(city: str) -> str:
    """Report the weather.

    Args:
        city: Where.
    """
    return f"Sun over {city}."


def chat(client: Client, model: str) -> None:
    whole = client.chat(model, TALK, options=GREEDY)
    assert whole.message.content and whole.done_reason == "length" and whole.eval_count == 12
    parts = list(client.chat(model, TALK, stream=True, options=GREEDY, keep_alive="5m"))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].total_duration > 0
    scored = client.chat(model, TALK, logprobs=True, top_logprobs=2, options=GREEDY)
    assert [len(one.top_logprobs) for one in scored.logprobs] == [2] * 12


def generate(client: Client, model: str) -> None:
    whole = client.generate(model, "Once upon a time", options=GREEDY)
    parts = list(client.generate(model, "Once upon a time", stream=True, options=GREEDY))
    assert whole.response and "".join(part.response for part in parts) == whole.response
    raw = client.generate(model, "Once upon a time", raw=True, options=GREEDY)
    assert raw.response and raw.prompt_eval_count < whole.prompt_eval_count


def structured(client: Client, model: str) -> None:
    found = client.chat(model, TALK, format=Cat.model_json_schema(), options={"seed": 1})
    assert Cat.model_validate_json(found.message.content)
    free = client.generate(model, "A cat", format="json", options={"num_predict": 200, "seed": 1})
    if free.done_reason == "stop":
        json.loads(free.response)


def tools(client: Client, model: str) -> None:
    """Without a demand for one the model writes text; the results of calls are read."""
    found = client.chat(model, TALK, tools=[weather], options=GREEDY)
    assert found.message.role == "assistant" and found.message.content
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    after = [*TALK, {"role": "assistant", "content": "", "tool_calls": [call]},
             {"role": "tool", "content": "Sun.", "tool_name": "weather"}]  # fmt: skip
    again = client.chat(model, after, tools=[weather], options=GREEDY)
    assert again.message.content and again.prompt_eval_count > found.prompt_eval_count


def embeddings(client: Client, model: str) -> None:
    two = client.embed(model, ["A cat", "A dog"]).embeddings
    assert len(two) == 2 and len(two[0]) == len(two[1]) > 0
    old = client.embeddings(model, "A cat").embedding
    assert len(old) == len(two[0])


def models(client: Client, model: str) -> None:
    listed = [one.model for one in client.list().models]
    assert f"{model}:latest" in listed or model in listed
    assert [one.model for one in client.ps().models] == listed
    card = client.show(model)
    assert card.details.format == "gguf" and card.modelinfo


def errors(client: Client, url: str, model: str) -> None:
    def status(work: Client, name: str, options: dict[str, float]) -> int:
        try:
            work.chat(name, TALK, options=options)
        except ResponseError as error:
            assert error.error
            return error.status_code
        raise AssertionError("no error")

    assert status(client, "nothing", {}) == 404
    assert status(client, model, {"temperature": -1}) == 400
    assert status(Client(url, headers={"authorization": "Bearer wrong"}), model, {}) == 401


async def at_once(url: str, model: str, key: str) -> None:
    client = AsyncClient(url, headers={"authorization": f"Bearer {key}"})

    async def one() -> str:
        stream = await client.chat(model, TALK, stream=True, options=GREEDY)
        return "".join([part.message.content or "" async for part in stream])

    found = await asyncio.gather(*(one() for _ in range(4)))
    assert len(set(found)) == 1 and found[0]


def main() -> None:
    url, model, key = sys.argv[1:]
    client = Client(url, headers={"authorization": f"Bearer {key}"})
    os.environ["OLLAMA_API_KEY"] = key
    assert Client(url).list() == client.list()
    del os.environ["OLLAMA_API_KEY"]
    for over in (chat, generate, structured, tools, embeddings, models):
        over(client, model)
    errors(client, url, model)
    asyncio.run(at_once(url, model, key))


if __name__ == "__main__":
    main()
