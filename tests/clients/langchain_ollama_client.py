"""langchain-ollama over /api: `langchain_ollama_client.py URL MODEL KEY`."""

import asyncio
import sys
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError
from pydantic import BaseModel

TALK = [SystemMessage("Be kind."), HumanMessage("A cat sat.")]


class Cat(BaseModel):
    """A cat, as it is now."""

    asleep: bool
    legs: Literal[3, 4]


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Report the weather."""
    return f"Sun over {city}."


def chat(given: dict[str, object]) -> None:
    llm = ChatOllama(**given, temperature=0, num_predict=12, num_thread=2, num_gpu=0)
    whole = llm.invoke(TALK)
    parts = list(llm.stream(TALK))
    assert whole.content and "".join(part.content for part in parts) == whole.content
    assert whole.usage_metadata["output_tokens"] == 12
    many = asyncio.run(llm.abatch([TALK] * 4))
    assert {one.content for one in many} == {whole.content}
    checked = ChatOllama(**given, temperature=0, num_predict=12, validate_model_on_init=True)
    assert checked.invoke(TALK).content == whole.content
    text = OllamaLLM(**given, temperature=0, num_predict=12)
    assert text.invoke("Once upon a time") == "".join(text.stream("Once upon a time"))


def tools(given: dict[str, object]) -> None:
    """Ollama's API cannot demand a call: the model decides, and this one writes text."""
    llm = ChatOllama(**given, temperature=0, num_predict=12).bind_tools([weather])
    assert llm.invoke(TALK).content
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "1", "type": "tool_call"}
    said = AIMessage("", tool_calls=[call])
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert llm.invoke([*TALK, said, result]).content


def structured(given: dict[str, object]) -> None:
    llm = ChatOllama(**given, temperature=0, num_predict=300)
    found = llm.with_structured_output(Cat, method="json_schema").invoke(TALK)
    assert isinstance(found, Cat)
    free = ChatOllama(**given, format="json", temperature=0, num_predict=100).invoke(TALK)
    assert free.content.lstrip().startswith("{")


def embeddings(given: dict[str, object]) -> None:
    embed = OllamaEmbeddings(**given)
    two = embed.embed_documents(["A cat", "A dog"])
    assert len(two) == 2 and len(two[0]) == len(embed.embed_query("A cat")) > 0


def errors(given: dict[str, object]) -> None:
    try:
        ChatOllama(**{**given, "model": "nothing"}).invoke(TALK)
    except ResponseError as error:
        assert error.status_code == 404
        return
    raise AssertionError("no error")


def main() -> None:
    url, model, key = sys.argv[1:]
    headers = {"headers": {"authorization": f"Bearer {key}"}}
    given = {"base_url": url, "model": model, "client_kwargs": headers}
    for over in (chat, tools, structured, embeddings, errors):
        over(given)


if __name__ == "__main__":
    main()
