"""instructor over /v1 in each of its modes: `instructor_client.py URL MODEL KEY`."""

import asyncio
import sys
from collections.abc import Iterable
from typing import Literal

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

TALK = [{"role": "user", "content": "A cat sat."}]


class Cat(BaseModel):
    """A cat, as it is now."""

    asleep: bool
    legs: Literal[3, 4]


def main() -> None:
    url, model, key = sys.argv[1:]
    given = {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0}
    requested = {"model": model, "messages": TALK, "temperature": 0, "max_tokens": 400}
    modes = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)
    for mode in modes:
        client = instructor.from_openai(OpenAI(**given), mode=mode)
        found = client.chat.completions.create(response_model=Cat, max_retries=1, **requested)
        assert isinstance(found, Cat), mode
        *_, last = client.chat.completions.create_partial(response_model=Cat, **requested)
        assert last.legs in (3, 4), mode
        cat, raw = client.chat.completions.create_with_completion(response_model=Cat, **requested)
        assert cat.model_dump() == found.model_dump() and raw.usage.completion_tokens > 0

    several = instructor.from_openai(OpenAI(**given), mode=instructor.Mode.TOOLS)
    cats = several.chat.completions.create(response_model=Iterable[Cat], **requested)
    assert all(isinstance(one, Cat) for one in cats)

    waiting = instructor.from_openai(AsyncOpenAI(**given), mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(asyncio.run(waiting.create(response_model=Cat, **requested)), Cat)


if __name__ == "__main__":
    main()
