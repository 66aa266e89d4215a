"""litellm over the OpenAI, Anthropic and Ollama APIs: `litellm_client.py URL MODEL KEY`."""

import asyncio
import json
import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request for its list of prices

import litellm
from pydantic import BaseModel, ConfigDict

litellm.suppress_debug_info = True
TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A cat sat."}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
NAMED = {"type": "function", "function": {"name": "weather"}}


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    asleep: bool
    legs: Literal[3, 4]


def chat(given: dict[str, str]) -> None:
    reported = {**given, "messages": TALK, "temperature": 0, "max_tokens": 12}
    whole = litellm.completion(**reported).choices[0].message.content
    parts = [
        part.choices[0].delta.content or "" for part in litellm.completion(**reported, stream=True)
    ]
    assert whole and "".join(parts) == whole

    async def one() -> str:
        return (await litellm.acompletion(**reported)).choices[0].message.content

    async def several() -> list[str]:
        return await asyncio.gather(*(one() for _ in range(4)))

    assert set(asyncio.run(several())) == {whole}


def structured(given: dict[str, str]) -> None:
    reported = {**given, "messages": TALK, "temperature": 0, "max_tokens": 300}
    found = litellm.completion(**reported, response_format=Cat).choices[0].message.content
    assert Cat.model_validate_json(found)


def tools(given: dict[str, str]) -> None:
    reported = {**given, "temperature": 0, "max_tokens": 100, "tools": [TOOL]}
    said = litellm.completion(**reported, messages=TALK, tool_choice=NAMED).choices[0].message
    (call,) = said.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sun."}
    after = litellm.completion(**reported, messages=[*TALK, said, result], tool_choice="none")
    assert after.choices[0].message.content


def completions(given: dict[str, str]) -> None:
    reported = {**given, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}
    whole = litellm.text_completion(**reported).choices[0].text
    parts = [part.choices[0].text for part in litellm.text_completion(**reported, stream=True)]
    assert whole and "".join(part or "" for part in parts) == whole


def embeddings(given: dict[str, str]) -> None:
    two = litellm.embedding(**given, input=["A cat", "A dog"]).data
    assert len(two) == 2 and len(two[0]["embedding"]) == len(two[1]["embedding"]) > 0


def responses(given: dict[str, str]) -> None:
    whole = litellm.responses(**given, input="A cat sat.", temperature=0, max_output_tokens=16)
    assert whole.output[0].content[0].text and whole.usage.output_tokens == 16


def errors(given: dict[str, str], name: str) -> None:
    reported = {**given, "messages": TALK, "max_retries": 0}
    for kind, wrong in (
        (litellm.NotFoundError, {"model": name}),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
        (litellm.BadRequestError, {"temperature": -1}),
    ):
        try:
            litellm.completion(**{**reported, **wrong})
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")


def main() -> None:
    url, model, key = sys.argv[1:]
    of_openai = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": key}
    hosted = {**of_openai, "model": f"hosted_vllm/{model}"}
    of_anthropic = {"model": f"anthropic/{model}", "api_base": url, "api_key": key}
    of_ollama = {"model": f"ollama_chat/{model}", "api_base": url, "api_key": key}
    for given in (of_openai, hosted, of_anthropic):
        for over in (chat, structured, tools):
            over(given)
    for over in (chat, structured):  # Ollama's API cannot demand a call
        over(of_ollama)
    for over in (embeddings, completions, responses):
        over(of_openai)
    errors(of_openai, "openai/nothing")


if __name__ == "__main__":
    main()
