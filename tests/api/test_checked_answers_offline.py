"""`strictness="validate"` through `LLM` and `AsyncLLM`."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from flyweight import LLM, AsyncLLM, RequestError, SamplingParams, StructuredOutputs
from flyweight.requests.attempts import MOST_ATTEMPTS

DIGITS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 9},
    "minItems": 2,
    "maxItems": 3,
    "uniqueItems": True,
}
IMPOSSIBLE = {**DIGITS, "items": {"const": 1}}
ONCE = "Once upon a time"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


def wanted(schema: Any = DIGITS, **options: Any) -> SamplingParams:
    form = StructuredOutputs(json=schema, strictness="validate")
    return SamplingParams(**{"max_tokens": 200, "structured_outputs": form, **options})


def test_every_answer_is_valid_or_says_that_it_is_not(llm: LLM) -> None:
    params = [wanted(seed=seed, n=2) for seed in range(6)]
    counts = []
    for output in llm.generate([ONCE] * 6, params):
        for choice in output.outputs:
            assert choice.structured_output is not None and choice.structured_output.valid
            jsonschema.validate(json.loads(choice.text), DIGITS)
            counts.append(choice.structured_output.attempts)
    assert min(counts) == 1 < max(counts)
    engine = llm.loaded.engine
    assert not engine.busy and not llm.loop.live


def test_the_same_seed_gives_the_same_answer(llm: LLM) -> None:
    one, other = (llm.generate(ONCE, wanted(seed=4))[0].outputs[0] for _ in range(2))
    assert one.text == other.text and one.structured_output == other.structured_output


def test_a_greedy_answer_is_tried_again(llm: LLM) -> None:
    (choice,) = llm.generate(ONCE, wanted(IMPOSSIBLE, temperature=0, max_tokens=50))[0].outputs
    assert choice.structured_output is not None and not choice.structured_output.valid
    assert choice.structured_output.attempts > 3
    assert choice.finish_reason in ("stop", "length")
    (choice,) = llm.generate(ONCE, wanted(IMPOSSIBLE, temperature=0, max_tokens=400))[0].outputs
    assert choice.structured_output is not None
    assert choice.structured_output.attempts == MOST_ATTEMPTS


def test_exact_answers_are_not_reported(llm: LLM) -> None:
    exact = {**DIGITS, "uniqueItems": False}
    (one,) = llm.generate(ONCE, wanted(exact, seed=1))[0].outputs
    form = StructuredOutputs(json=exact, strictness="exact")
    (two,) = llm.generate(ONCE, wanted(seed=1, structured_outputs=form))[0].outputs
    assert one.structured_output is not None and one.structured_output.attempts == 1
    assert two.structured_output is None


def test_streams_yield_the_last_attempt_alone(llm: LLM) -> None:
    (output,) = llm.stream(ONCE, wanted(seed=2))
    (choice,) = output.outputs
    assert output.finished and choice.delta == choice.text
    assert choice.structured_output is not None and choice.structured_output.valid

    async def work() -> None:
        async with AsyncLLM() as several:

            async def one(seed: int) -> None:
                (output,) = [o async for o in several.generate(ONCE, wanted(seed=seed, n=2))]
                for choice in output.outputs:
                    jsonschema.validate(json.loads(choice.text), DIGITS)

            await asyncio.gather(*(one(seed) for seed in range(6)))

    asyncio.run(work())


def test_what_cannot_be_checked_is_refused(llm: LLM) -> None:
    for options in ({"best_of": 3}, {"include_stop_str_in_output": True}):
        with pytest.raises(RequestError, match=next(iter(options))):
            llm.generate(ONCE, wanted(**options))
