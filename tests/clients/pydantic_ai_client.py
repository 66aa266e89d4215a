"""Pydantic AI over both of OpenAI's APIs: `pydantic_ai_client.py URL MODEL KEY`."""

import asyncio
import sys
from contextlib import suppress
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ModelHTTPError,
    NativeOutput,
    ToolOutput,
    UsageLimitExceeded,
    UsageLimits,
)
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SHORT = {"temperature": 0, "max_tokens": 12}
LONG = {"temperature": 0, "max_tokens": 300}
ONE_CALL = {**LONG, "parallel_tool_calls": False}


class Cat(BaseModel):
    """A cat, as it is now."""

    asleep: bool
    legs: Literal[3, 4]


async def chat(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
    agent = Agent(model, instructions="Be kind.", model_settings=SHORT)
    whole = await agent.run("A cat sat.")
    assert whole.output and whole.usage.output_tokens == 12
    async with agent.run_stream("A cat sat.") as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(parts) == whole.output
    after = await agent.run("A dog sat.", message_history=whole.all_messages())
    assert after.output and after.usage.input_tokens > whole.usage.input_tokens
    many = await asyncio.gather(*(agent.run("A cat sat.") for _ in range(4)))
    assert {one.output for one in many} == {whole.output}


async def structured(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
    for kind in (ToolOutput(Cat), NativeOutput(Cat)):
        agent = Agent(model, output_type=kind, model_settings=LONG)
        assert isinstance((await agent.run("A cat sat.")).output, Cat)
        async with agent.run_stream("A cat sat.") as stream:
            assert isinstance(await stream.get_output(), Cat)


async def tools(model: OpenAIChatModel) -> None:
    """One call a request is demanded: of the tool, or of what ends the run."""
    requested: list[str] = []
    agent = Agent(model, output_type=ToolOutput(Cat), model_settings=ONE_CALL)

    @agent.tool_plain
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """Report the weather."""
        requested.append(city)
        return f"Sun over {city}."

    with suppress(UsageLimitExceeded):  # this model may never call what ends the run
        await agent.run("A cat sat.", usage_limits=UsageLimits(request_limit=3))
    assert requested and set(requested) <= {"Rome", "Oslo"}


async def errors(url: str, key: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=key)
    try:
        await Agent(OpenAIChatModel("nothing", provider=provider)).run("A cat sat.")
    except ModelHTTPError as error:
        assert error.status_code == 404
        return
    raise AssertionError("no error")


async def run(url: str, model: str, key: str) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=key)
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        served = kind(model, provider=provider)
        for over in (chat, structured):
            await over(served)
    await tools(OpenAIChatModel(model, provider=provider))
    await errors(url, key)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
