"""A request whose data makes a step raise ends with an error; the others get the same tokens as
without it, in `LLM` and in `AsyncLLM`.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, AsyncLLM, SamplingParams
from flyweight.driver.driver import BROKE
from flyweight.outputs import RequestOutput
from tiny_model import tiny_folder

PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPTS = [f"hello number {i}" for i in range(5)]
POISON = 2  # the place of the one that fails
OPTIONS: dict[str, Any] = {"block_size": 8, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[str]:
    return texts(LLM(folder, **OPTIONS).generate(PROMPTS, PARAMS))


def texts(outputs: Sequence[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def poison(llm: LLM, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Has every step raise that computes PROMPTS[POISON] and over `after` tokens of its answer."""
    engine = llm.loaded.engine
    tokens = tuple(llm.tokenizer.encode(PROMPTS[POISON]))
    submit = engine.runner.submit

    def broken(batch: Any, *rest: Any) -> Any:
        live = [seq for group in engine.scheduler.by_id.values() for seq in group]
        for seq in (seq for seq in live if seq.request.tokens == tokens):
            blocks = seq.table.blocks.tolist()
            for table, context in zip(batch.tables.tolist(), batch.contexts, strict=True):
                if blocks and table[: len(blocks)] == blocks and context > len(tokens) + after:
                    raise ValueError("a number that no kernel likes")
        return submit(batch, *rest)

    monkeypatch.setattr(engine.runner, "submit", broken)


def check(outputs: Sequence[RequestOutput], expected: Sequence[str], error: object) -> None:
    for i, (output, text) in enumerate(zip(outputs, expected, strict=True)):
        choice = output.outputs[0]
        if i == POISON:
            assert choice.finish_reason == "error" and text.startswith(choice.text)
            assert str(error) in str(choice.stop_reason)
        else:
            assert (choice.finish_reason, choice.text) == ("length", text)


@pytest.mark.parametrize("after", [-1, 3])
def test_a_request_that_makes_a_step_raise_ends_alone(
    folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, after: int,
) -> None:  # fmt: skip
    llm = LLM(folder, **OPTIONS)
    poison(llm, monkeypatch, after)
    with caplog.at_level(logging.ERROR, "flyweight"):
        check(llm.generate(PROMPTS, PARAMS), expected, BROKE)
    assert "a number that no kernel likes" in caplog.text
    monkeypatch.undo()
    assert texts(llm.generate(PROMPTS, PARAMS)) == expected


def asynchronous(
    folder: Path, params: Sequence[SamplingParams], prepare: Any = None
) -> list[RequestOutput]:
    async def last(llm: AsyncLLM, prompt: str, own: SamplingParams) -> RequestOutput:
        async for output in llm.generate(prompt, own):
            found = output
        return found

    async def main() -> list[RequestOutput]:
        async with AsyncLLM(folder, **OPTIONS) as llm:
            if prepare is not None:
                prepare(llm.llm)
            pairs = zip(PROMPTS, params, strict=True)
            return await asyncio.gather(*(last(llm, prompt, own) for prompt, own in pairs))

    return asyncio.run(main())


def test_a_stream_that_makes_a_step_raise_ends_alone(
    folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [PARAMS] * len(PROMPTS)
    check(asynchronous(folder, params, lambda llm: poison(llm, monkeypatch, 3)), expected, BROKE)


def test_a_logits_processor_that_raises_ends_its_own_request_alone(
    folder: Path, expected: list[str]
) -> None:
    def failing(ids: list[int], row: Any) -> Any:
        if len(ids) == 4:
            raise KeyError("of the caller")
        return row

    params = [PARAMS.clone() for _ in PROMPTS]
    params[POISON] = SamplingParams(
        temperature=0, max_tokens=20, ignore_eos=True, logits_processors=[failing]
    )
    error = "logits_processors[0] raised KeyError"
    check(LLM(folder, **OPTIONS).generate(PROMPTS, params), expected, error)
    check(asynchronous(folder, params), expected, error)


@pytest.mark.parametrize("method", ["schedule", "commit"])
def test_a_bug_in_the_scheduler_is_raised(
    folder: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    llm = LLM(folder, **OPTIONS)

    def broken(*given: Any) -> Any:
        raise AssertionError("a bug of ours")

    monkeypatch.setattr(llm.loaded.engine.scheduler, method, broken)
    with pytest.raises(AssertionError, match="a bug of ours"):
        llm.generate(PROMPTS, PARAMS)
    monkeypatch.undo()
    assert texts(llm.generate(PROMPTS, PARAMS)) == expected
