"""Structured outputs through `LLM`, on random weights: every answer satisfies its constraint, and
the same tokens come whatever the company, the memory and the drafts.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from sys import maxsize
from typing import Any

import jsonschema
import pytest

from flyweight import LLM, RequestError, SamplingParams, StructuredOutputs
from flyweight.draft.drafter import DraftRequest
from flyweight.engine.step import StepBudget
from flyweight.outputs import RequestOutput
from tiny_model import tiny_folder
from tree_drafter import TreeDrafter

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "born": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["cat", "dog", None, 3.5]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
FINITE: list[dict[str, Any]] = [
    PERSON,
    {"type": "string", "format": "hostname", "maxLength": 12},
    {"type": "string", "format": "time"},
    {"type": "string", "pattern": "^\\s?[a-c]{1,4}.\\S$"},
    {"type": "number", "multipleOf": 0.5, "minimum": -3, "maximum": 3, "enum": [-3, 0.5, 2]},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}], "$defs": {"pair": {
        "type": "array", "prefixItems": [{"type": "boolean"}, {"const": "é\n\""}], "items": False,
        "minItems": 2,
    }}},
    {"type": "object", "additionalProperties": False, "maxProperties": 2,
     "properties": {"k": {"type": "integer", "exclusiveMinimum": 7, "maximum": 11}},
     "patternProperties": {"^x_[a-z]$": {"type": "null"}}, "required": ["k"]},
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    yield LLM(folder, max_num_seqs=16)


def wanted(seed: int = 0, **options: Any) -> SamplingParams:
    constraint = StructuredOutputs(**options.pop("form"))
    return SamplingParams(
        structured_outputs=constraint, max_tokens=options.pop("most", 200), seed=seed, **options
    )


def texts(found: list[RequestOutput]) -> list[str]:
    return [choice.text for one in found for choice in one.outputs]


@pytest.mark.parametrize("number", range(len(FINITE)))
def test_random_weights_keep_to_a_schema(llm: LLM, number: int) -> None:
    """A judge of another hand, `jsonschema`, finds every answer valid; every one is finished."""
    schema = FINITE[number]
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    params = [wanted(seed, form={"json": schema}, temperature=1.3) for seed in range(40)]
    found = llm.generate(["Once"] * len(params), params)
    assert {choice.finish_reason for one in found for choice in one.outputs} == {"stop"}
    for text in texts(found):
        judge.validate(json.loads(text))
        for day in re.findall(r'"born": ?"([^"]*)"', text):
            datetime.fromisoformat(day)
    assert len(set(texts(found))) > 1


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[a-f]{2,6}-(one|two)"}, r"[a-f]{2,6}-(one|two)"),
        ({"choice": ["yes", "no", "per\nhaps (é) \"'\\"]}, "yes|no|per\nhaps \\(é\\) \"'\\\\"),
        ({"grammar": 'start: "a" b\nb: "x" | "(" b ")"'}, r"a\(*x\)*"),
        ({"choice": [""]}, ""),
    ],
)
def test_other_constraints(llm: LLM, form: dict[str, Any], pattern: str) -> None:
    params = [wanted(seed, form=form, temperature=1.0) for seed in range(12)]
    for one in llm.generate(["One", "Two"] * 6, params):
        assert re.fullmatch(pattern, one.outputs[0].text), one.outputs[0].text
        assert one.outputs[0].finish_reason == "stop"


def test_a_json_object_begins_as_one(llm: LLM) -> None:
    (one,) = llm.generate("A", wanted(form={"json_object": True}, most=30))
    assert one.outputs[0].text.startswith("{")


@pytest.mark.parametrize(
    "options", [{"ignore_eos": True}, {"min_tokens": 60}, {"temperature": 0}, {"top_k": 2},
                {"mirostat": 2}, {"typical_p": 0.5}, {"logprobs": 3}, {"repetition_penalty": 2.0}]
)  # fmt: skip
def test_it_composes_with_other_options(llm: LLM, options: dict[str, Any]) -> None:
    for one in llm.generate("A", wanted(3, form={"json": PERSON}, n=3, **options))[0].outputs:
        assert one.finish_reason == "stop"
        jsonschema.validate(json.loads(one.text), PERSON)


def test_options_that_leave_no_token_end_their_request_alone(llm: LLM) -> None:
    ids = llm.tokenizer.encode("x", add_special=False)
    alone = wanted(1, form={"regex": "abc"}, allowed_token_ids=ids)
    fine = wanted(1, form={"regex": "abc"})
    first, second = llm.generate(["A", "A"], [alone, fine])
    assert first.outputs[0].finish_reason == "error"
    assert "leave no token" in str(first.outputs[0].stop_reason)
    assert second.outputs[0].text == "abc"


def test_one_at_his_prompt_does_not_end_for_the_error_of_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of which nothing is drawn has no row: the row after it is somebody else's."""
    llm = LLM(folder, long_prefill_token_threshold=2)
    llm.generate(
        "A", wanted(form={"regex": "abc"})
    )  # compiled, so that it comes next to the prompt

    def broken(*anything: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(llm.loaded.engine.grammars, "_mark", broken)
    plain = SamplingParams(max_tokens=3, ignore_eos=True)
    long, short = llm.generate(["one two " * 40, "A"], [plain, wanted(form={"regex": "abc"})])
    assert "ZeroDivisionError" in str(short.outputs[0].stop_reason)
    assert long.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("drafts", [0, 4])
def test_waiting_for_a_mask_changes_no_tokens(folder: Path, llm: LLM, drafts: int) -> None:
    """With no time for masks, each step makes one; what the others draw does not count."""
    params = [
        wanted(s, form={"json": PERSON}, n=3, temperature=0.7, prompt_logprobs=1, logprobs=2)
        for s in range(3)
    ]
    prompts = ["Once upon a time", "A", "A"]
    patient = LLM(folder, max_num_seqs=16, draft_tokens=drafts)
    steps = patient.loaded.engine.metrics.steps
    engine = patient.loaded.engine
    step, hasty = engine.step, StepBudget(maxsize, mask_seconds=0.0)
    engine.step = lambda budget, planned: step(hasty, planned)  # type: ignore[method-assign]
    found = patient.generate(prompts, params)
    tokens = sum(len(choice.token_ids) for one in found for choice in one.outputs)
    assert drafts or patient.loaded.engine.metrics.steps - steps >= tokens
    for one, other in zip(llm.generate(prompts, params), found, strict=True):
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]
        assert [c.logprobs for c in one.outputs] == [c.logprobs for c in other.outputs]
        assert one.prompt_logprobs == other.prompt_logprobs


def test_drafts_memory_and_company_change_nothing(folder: Path, llm: LLM) -> None:
    """Preemption, guesses, chunks and batch-mates: the same tokens as alone."""
    schema = {"type": "array", "items": PERSON, "minItems": 2, "maxItems": 3}
    params = [wanted(s, form={"json": schema}, n=2, temperature=0.7, most=150) for s in range(5)]
    prompts = ["Once upon a time", "A", "The dog", "A", "Two"]
    alone = [llm.generate(p, one)[0] for p, one in zip(prompts, params, strict=True)]
    tight = LLM(folder, blocks=20, max_num_seqs=6, draft_tokens=4)
    together = tight.generate(prompts, params)
    assert tight.loaded.engine.metrics.preempted > 0
    assert tight.loaded.engine.metrics.accepted > 0
    assert tight.loaded.engine.grammars.live_bytes == 0
    for one, other in zip(alone, together, strict=True):
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]


def test_trees_of_drafts_change_nothing(folder: Path, llm: LLM) -> None:
    """Wrong branches are cut where the grammar refuses them; each row has the mask of its path."""
    schema = {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}
    guessing = LLM(folder, max_num_seqs=6, draft_tokens=9)
    engine = guessing.loaded.engine
    for seed in range(3):
        params = wanted(seed, form={"json": schema}, n=2, temperature=0.7, most=80, logprobs=2)
        one = llm.generate("A", params)[0]
        right = [[*one.prompt_token_ids, *choice.token_ids] for choice in one.outputs]

        def find_right(ask: DraftRequest, right: list[list[int]] = right) -> list[int]:
            _, index = ask.id  # type: ignore[misc]
            return right[index][len(ask.tokens) :]

        likely = sorted({token for text in right for token in text})
        engine.drafts.calls.use(TreeDrafter(find_right, likely))
        other = guessing.generate("A", params)[0]
        assert [c.token_ids for c in one.outputs] == [c.token_ids for c in other.outputs]
        assert [c.logprobs for c in one.outputs] == [c.logprobs for c in other.outputs]
    assert engine.metrics.accepted > 20


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"json": {"type": "object", "not": {"pattern": "a"}}}, "'not' is not supported"),
        ({"json": {"type": "array", "items": {"uniqueItems": True}}}, "/items"),
        ({"json": {"typ": "object"}}, "did you mean 'type'"),
        ({"json": {"format": "iri"}}, "format"),
        ({"json": {"pattern": "(?=a)"}}, "(?="),
        ({"json": {"minProperties": 2}}, "minProperties"),
        ({"json": False}, "nothing is valid"),
        ({"regex": "(a"}, "regex"),
        ({"grammar": "start: nowhere"}, "nowhere"),
        ({"grammar": "start: <nowhere>"}, "nowhere"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(llm: LLM, form: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        llm.generate("A", wanted(form=form))
