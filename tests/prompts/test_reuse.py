"""The predicted reuse of prompts is what the engine reports for them."""

from collections.abc import Iterator

import pytest

from flyweight import LLM, SamplingParams
from flyweight.prompts.lint import PromptLinter
from flyweight.prompts.rendering import PromptRenderer
from flyweight.prompts.requests import SampleRequest
from flyweight.prompts.reuse import predict_reuse
from flyweight.prompts.volatile import find_forms, group_spans, move_last, vary

RULES = "The owl is kind. The fox is quick. They went to the lake to find a red boat. " * 3


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(memory_limit="8GiB", block_size=16) as found:
        yield found


def run(llm: LLM, requests: list[SampleRequest]) -> list[int]:
    """The tokens of each prompt that the engine finds, one request after the other."""
    llm.reset_prefix_cache()
    render = PromptRenderer(llm.tokenizer).render
    greedy = SamplingParams(temperature=0, max_tokens=1)
    found = []
    for request in requests:
        prompt = {"prompt_token_ids": list(render(request).ids)}
        (output,) = llm.generate(prompt, greedy, use_tqdm=False)
        found.append(output.num_cached_tokens or 0)
    return found


def test_blocks_by_hand() -> None:
    """Blocks of four: the second prompt finds one, the third two, the copy all but the last."""
    first = (1, 2, 3, 4, 5, 6, 7, 8)
    found = predict_reuse([first, (1, 2, 3, 4, 9, 6, 7, 8), (*first, 9), first], 4)
    assert found.hits == (0, 4, 8, 4) and found.tokens == 33
    assert found.found == 16 and found.rate == pytest.approx(16 / 33)


def test_an_end_alone_is_not_found() -> None:
    assert predict_reuse([(1, 2, 3, 4), (9, 2, 3, 4), ()], 2).hits == (0, 0, 0)


def test_a_prediction_is_what_the_engine_finds(llm: LLM) -> None:
    requests = [
        SampleRequest("a", (f"Order {number}. {RULES}\nWhat does the {who} do?",))
        for number, who in ((17, "owl"), (23, "fox"), (17, "owl"), (99, "boat"))
    ]
    ids = [PromptRenderer(llm.tokenizer).render(request).ids for request in requests]
    assert run(llm, requests) == list(predict_reuse(ids, 16).hits)


def test_so_is_that_of_moved_text(llm: LLM) -> None:
    requests = [
        SampleRequest.of_messages(
            "a",
            [
                {"role": "system", "content": f"Today is 2024-05-{day}. {RULES}"},
                {"role": "user", "content": "What does the owl do?"},
            ],
        )
        for day in ("01", "02", "17")
    ]
    lint = PromptLinter(llm.tokenizer, 16).lint(requests)
    assert list(lint.now.hits) == run(llm, requests)
    spans = [one for i, r in enumerate(requests) for one in find_forms(r)]
    segments = [group_spans([r], find_forms(r))[0].segments[0] for r in requests]
    moved = [move_last(r, [s]) for r, s in zip(requests, segments, strict=True)]
    assert len(spans) == 3 and list(lint.moved.hits) == run(llm, moved)
    assert lint.now.found == 0 < lint.moved.found
    (finding,) = lint.findings
    assert finding.rule == "volatile" and finding.section == "messages.0 system"
    assert finding.lost == lint.moved.found - lint.now.found


def test_a_single_request_is_compared_with_its_next(llm: LLM) -> None:
    request = SampleRequest("a", (f"It is 12:30 on 2024-05-01.\n{RULES}\nThe owl said",))
    lint = PromptLinter(llm.tokenizer, 16).lint([request])
    after = run(llm, [request, vary(request, find_forms(request))])
    assert lint.single and list(lint.now.hits) == after[1:]
    assert lint.moved.found > lint.now.found
