"""OpenAI's Agents SDK over both of OpenAI's APIs: `openai_agents_client.py URL MODEL KEY`."""

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, NotFoundError
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

# The SDK takes no response that was cut off by its limit: sentences end in a stop string.
SHORT = ModelSettings(temperature=0, max_tokens=200, extra_body={"stop": ["."]})
LONG = ModelSettings(temperature=0, max_tokens=300)
DEMANDED = SHORT.resolve(ModelSettings(tool_choice="required", parallel_tool_calls=False))
Model = OpenAIChatCompletionsModel | OpenAIResponsesModel


class Cat(BaseModel):
    """A cat, as it is now."""

    asleep: bool
    legs: Literal[3, 4]


requested: list[str] = []


@function_tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Report the weather."""
    requested.append(city)
    return f"Sun over {city}."


async def chat(model: Model) -> None:
    agent = Agent(name="Cat", instructions="Be kind.", model=model, model_settings=SHORT)
    whole = (await Runner.run(agent, "A cat sat.")).final_output
    stream = Runner.run_streamed(agent, "A cat sat.")
    events = [event async for event in stream.stream_events()]
    raw = [event.data for event in events if event.type == "raw_response_event"]
    said = "".join(one.delta for one in raw if isinstance(one, ResponseTextDeltaEvent))
    assert whole and said == stream.final_output == whole


async def tools(model: Model) -> None:
    """A call is demanded, its result is given back, and the next turn answers."""
    requested.clear()
    agent = Agent(name="Cat", model=model, tools=[weather], model_settings=DEMANDED)
    found = await Runner.run(agent, "A cat sat.", max_turns=4)
    assert found.final_output and requested and set(requested) <= {"Rome", "Oslo"}
    requested.clear()
    stream = Runner.run_streamed(agent, "A cat sat.", max_turns=4)
    kinds = [e.item.type async for e in stream.stream_events() if e.type == "run_item_stream_event"]
    assert kinds[-1] == "message_output_item" and "tool_call_output_item" in kinds and requested


async def structured(model: Model) -> None:
    agent = Agent(name="Cat", model=model, output_type=Cat, model_settings=LONG)
    assert isinstance((await Runner.run(agent, "A cat sat.")).final_output, Cat)


async def run(url: str, model: str, key: str) -> None:
    set_tracing_disabled(True)  # or it is sent to OpenAI
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        served = kind(model=model, openai_client=client)
        for over in (chat, tools, structured):
            await over(served)
    nothing = OpenAIChatCompletionsModel(model="nothing", openai_client=client)
    try:
        await Runner.run(Agent(name="Cat", model=nothing), "A cat sat.")
    except NotFoundError:
        return
    raise AssertionError("no error")


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
