"""LlamaIndex over /v1 and /api: `llama_index_client.py URL MODEL KEY`."""

import asyncio
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from ollama import AsyncClient, Client
from pydantic import BaseModel

TALK = [ChatMessage(role="system", content="Be kind."), ChatMessage("A cat sat.")]


class Cat(BaseModel):
    """A cat, as it is now."""

    asleep: bool
    legs: Literal[3, 4]


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Report the weather."""
    return f"Sun over {city}."


TOOL = FunctionTool.from_defaults(weather)


def chat(llm: OpenAILike | Ollama) -> None:
    whole = llm.chat(TALK).message.content
    assert whole and "".join(part.delta or "" for part in llm.stream_chat(TALK)) == whole
    assert asyncio.run(llm.achat(TALK)).message.content == whole
    text = llm.complete("Once upon a time").text
    assert (
        text
        and "".join(part.delta or "" for part in llm.stream_complete("Once upon a time")) == text
    )


def tools(llm: OpenAILike) -> None:
    said = llm.chat_with_tools([TOOL], "A cat sat.", tool_required=True)
    calls = llm.get_tool_calls_from_response(said)
    assert calls and calls[0].tool_name == "weather"
    assert calls[0].tool_kwargs["city"] in ("Rome", "Oslo")
    found = llm.predict_and_call([TOOL], "A cat sat.", tool_required=True)
    assert "Sun over" in str(found)


def main() -> None:
    url, model, key = sys.argv[1:]
    given = {"model": model, "api_base": f"{url}/v1", "api_key": key, "temperature": 0,
             "context_window": 4096, "max_retries": 0}  # fmt: skip
    chat(OpenAILike(**given, max_tokens=12, is_chat_model=True))
    chat(OpenAILike(**given, max_tokens=12))  # prompts go to /v1/completions
    caller = OpenAILike(**given, max_tokens=300, is_chat_model=True,
                        is_function_calling_model=True)  # fmt: skip
    tools(caller)
    shaped = OpenAILike(**given, max_tokens=300, is_chat_model=True,
                        should_use_structured_outputs=True)  # fmt: skip
    for llm in (caller, shaped):
        assert isinstance(llm.as_structured_llm(Cat).chat(TALK).raw, Cat)

    headers = {"authorization": f"Bearer {key}"}
    clients = {
        "client": Client(url, headers=headers),
        "async_client": AsyncClient(url, headers=headers),
    }
    served = {"model": model, "base_url": url, "temperature": 0, **clients}
    chat(Ollama(**served, additional_kwargs={"num_predict": 12}))
    shaped = Ollama(**served, additional_kwargs={"num_predict": 300})
    assert isinstance(shaped.as_structured_llm(Cat).chat(TALK).raw, Cat)


if __name__ == "__main__":
    main()
