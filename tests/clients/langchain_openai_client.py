"""langchain-openai over /v1: `langchain_openai_client.py URL MODEL KEY`."""

import asyncio
import sys
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from openai import NotFoundError
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


def chat(given: dict[str, str]) -> None:
    llm = ChatOpenAI(**given, temperature=0, max_tokens=12, seed=1)
    whole = llm.invoke(TALK)
    parts = list(llm.stream(TALK, stream_usage=True))
    assert whole.content and "".join(part.content for part in parts) == whole.content
    assert whole.usage_metadata["output_tokens"] == 12
    assert sum(p.usage_metadata["output_tokens"] for p in parts if p.usage_metadata) == 12
    chain = ChatPromptTemplate.from_messages([("user", "{what} sat.")]) | llm
    assert [len(one.content) > 0 for one in chain.batch([{"what": "A cat"}, {"what": "A dog"}])]
    many = asyncio.run(llm.abatch([TALK] * 4))
    assert {one.content for one in many} == {whole.content}
    scored = llm.bind(logprobs=True, top_logprobs=2).invoke(TALK)
    assert len(scored.response_metadata["logprobs"]["content"]) == 12
    text = OpenAI(**given, temperature=0, max_tokens=12)
    assert text.invoke("Once upon a time") == "".join(text.stream("Once upon a time"))


def responses(given: dict[str, str]) -> None:
    llm = ChatOpenAI(**given, temperature=0, max_tokens=12, use_responses_api=True)
    whole = llm.invoke(TALK)
    parts = list(llm.stream(TALK))
    assert whole.text and "".join(part.text for part in parts) == whole.text


def tools(given: dict[str, str]) -> None:
    llm = ChatOpenAI(**given, temperature=0, max_tokens=100)
    demanded = llm.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    said = demanded.invoke(TALK)
    (call,) = said.tool_calls
    assert call["name"] == "weather" and call["args"]["city"] in ("Rome", "Oslo")
    joined = None
    for part in demanded.stream(TALK):
        joined = part if joined is None else joined + part
    assert joined.tool_calls[0]["args"] == call["args"]
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    after = llm.bind_tools([weather]).invoke([*TALK, said, result])
    assert isinstance(after, AIMessage) and after.content


def structured(given: dict[str, str]) -> None:
    llm = ChatOpenAI(**given, temperature=0, max_tokens=300)
    for method in ("json_schema", "function_calling"):
        found = llm.with_structured_output(Cat, method=method).invoke(TALK)
        assert isinstance(found, Cat)


def embeddings(given: dict[str, str]) -> None:
    """Without `check_embedding_ctx_length=False` texts go as ids of OpenAI's own vocabulary."""
    embed = OpenAIEmbeddings(**given, check_embedding_ctx_length=False)
    two = embed.embed_documents(["A cat", "A dog"])
    assert len(two) == 2 and len(two[0]) == len(embed.embed_query("A cat")) > 0


def errors(given: dict[str, str]) -> None:
    try:
        ChatOpenAI(**{**given, "model": "nothing"}, max_retries=0).invoke(TALK)
    except NotFoundError:
        return
    raise AssertionError("no error")


def main() -> None:
    url, model, key = sys.argv[1:]
    given = {"base_url": f"{url}/v1", "api_key": key, "model": model}
    for over in (chat, responses, tools, structured, embeddings, errors):
        over(given)


if __name__ == "__main__":
    main()
