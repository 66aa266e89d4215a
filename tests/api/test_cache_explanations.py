"""Why a prompt was not found in the prefix cache: for `LLM`, `AsyncLLM`, and each reason."""

import asyncio
from collections.abc import Iterator

import pytest

from flyweight import LLM, AsyncLLM, SamplingParams
from flyweight.outputs import CacheExplanation
from flyweight.requests.explaining import CHANGING, EDITED, FIRST, LAST, REASONS, explain_cache
from flyweight.types import Reuse

STORY = "The owl and the fox went to the lake to find a red boat. " * 3
BRIEF = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(memory_limit="8GiB", block_size=16) as made:
        yield made


def ask(llm: LLM, prompt: str, salt: str) -> CacheExplanation:
    options = {"salt": salt, "return_cache_explanation": True}
    (output,) = llm.generate(prompt, BRIEF, use_tqdm=False, **options)
    assert output.cache_explanation is not None
    assert output.cache_explanation.hit_tokens == output.num_cached_tokens
    return output.cache_explanation


def test_a_number_that_changes(llm: LLM) -> None:
    first = ask(llm, f"Page 12 of 30. {STORY}", "number")
    assert (first.reason, first.expected, first.hit_tokens) == ("new_salt", None, 0)
    found = ask(llm, f"Page 12 of 45. {STORY}", "number")
    encode = llm.tokenizer.encode
    ids = [encode(f"Page 12 of {number}. {STORY}") for number in (30, 45)]
    place = next(i for i, (a, b) in enumerate(zip(*ids, strict=False)) if a != b)
    assert (found.diverged_at, found.reason) == (place, "never_seen")
    assert found.expected is not None and found.expected.startswith(" 30. The owl")
    assert found.got is not None and found.got.startswith(" 45. The owl")
    assert found.fix == CHANGING and found.prompt_tokens == len(ids[1])


def test_other_text_and_an_answer_that_was_edited(llm: LLM) -> None:
    (output,) = llm.generate(STORY, BRIEF, use_tqdm=False, salt="text")
    other = ask(llm, f"{STORY[:100]}zebras. {STORY}", "text")
    assert (other.fix, other.got is not None) == (LAST, True)
    answer = llm.tokenizer.decode(output.outputs[0].token_ids[:4])
    edited = ask(llm, f"{STORY}{answer} zebras zebras zebras {STORY}", "text")
    assert edited.fix == EDITED
    again = ask(llm, STORY, "text")
    assert (again.reason, again.fix, again.expected, again.got) == (None, None, None, None)


def test_chats_and_streams_explain_too(llm: LLM) -> None:
    talk = [{"role": "user", "content": STORY}]
    options = {"salt": "chat", "return_cache_explanation": True}
    llm.chat(talk, BRIEF, use_tqdm=False, **options)
    (output,) = llm.chat(talk, BRIEF, use_tqdm=False, **options)
    assert output.cache_explanation is not None and output.cache_explanation.reason is None
    *_, last = llm.stream(STORY, BRIEF, **options)
    assert last.cache_explanation is not None and last.cache_explanation.hit_tokens > 0
    (plain,) = llm.generate(STORY, BRIEF, use_tqdm=False, salt="chat")
    assert plain.cache_explanation is None


def test_asyncllm_explains_too() -> None:
    async def run() -> list[CacheExplanation | None]:
        async with AsyncLLM(memory_limit="8GiB") as llm:
            found = []
            for _ in range(2):
                answer = llm.generate(STORY, BRIEF, return_cache_explanation=True)
                outputs = [output async for output in answer]
                found.append(outputs[-1].cache_explanation)
            return found

    first, second = asyncio.run(run())
    assert first is not None and (first.reason, first.fix) == ("never_seen", FIRST)
    assert second is not None and second.reason is None


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_an_explanation_and_a_fix(llm: LLM, reason: str) -> None:
    found = explain_cache(Reuse(0, reason, None, block_size=16), [1, 2, 3], llm.tokenizer)
    assert found.explanation == REASONS[reason] and (found.fix is None) == (reason == "")
    assert found.reason == (reason or None) and found.block_size == 16


def test_without_exact_places_no_text_is_shown_nor_used(llm: LLM) -> None:
    """The same answer whatever the other request has behind the blocks that are cached."""
    tokens = llm.tokenizer.encode(f"It is 12:45. {STORY}")
    others = [
        Reuse(32, "never_seen", 33, (20, 21, 22), False, 16),
        Reuse(32, "never_seen", 47, (), False, 16),
        Reuse(32, "never_seen", 40, tuple(tokens[:8]), True, 16),
    ]
    shown = {explain_cache(one, tokens, llm.tokenizer, exact=False) for one in others}
    (found,) = shown
    assert (found.diverged_at, found.expected, found.got, found.fix) == (32, None, None, LAST)
