"""Every drafter that the model inside has, next to LoRA adapters: no token changes, and drafts of
answers with an adapter are accepted, though drafters do not apply adapters.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_draft_model import OPTIONS, PROMPTS, load
from test_drafted_answers import DRAFTERS

from flyweight import LLM, LoRARequest, SamplingParams
from tiny_model import tiny_adapter

SOME = PROMPTS[::2]
SHAPE = {"hidden_size": 192, "num_hidden_layers": 6}  # of the model inside
SPREAD = 0.1  # of the adapters' weights: texts change, and some drafts are still right
ALL, ADAPTED = (None, "poet", "clerk"), ("poet", "clerk")
Names = Sequence[str | None]
Answers = list[list[Sequence[int]]]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: tiny_adapter(folder / name, seed, SHAPE, SPREAD) for seed, name in enumerate(ADAPTED)
    }


def answer(llm: LLM, adapters: dict[str, Path], names: Names) -> Answers:
    """With each of the adapters in turn."""
    chosen = [names[i % len(names)] for i in range(len(SOME))]
    params = [
        SamplingParams(max_tokens=24, seed=i, **OPTIONS[i % len(OPTIONS)]) for i in range(len(SOME))
    ]
    numbers = {name: i for i, name in enumerate(adapters, 1)}
    lora = [name and LoRARequest(name, numbers[name], str(adapters[name])) for name in chosen]
    found = llm.generate(SOME, params, use_tqdm=False, lora_request=lora)
    return [[one.token_ids for one in each.outputs] for each in found]


@pytest.fixture(scope="module")
def wanted(adapters: dict[str, Path]) -> dict[Names, Answers]:
    llm = LLM("stories", threads=2, adapters=adapters)
    found = {names: answer(llm, adapters, names) for names in (ALL, ADAPTED, (None,))}
    plain = found[None,]
    assert sum(a != b for a, b in zip(found[ADAPTED], plain, strict=True)) > len(plain) / 2
    return found


@pytest.mark.parametrize("name", DRAFTERS)
def test_answers_with_adapters_are_those_without_drafts(
    wanted: dict[Names, Answers], adapters: dict[str, Path], name: str
) -> None:
    config: dict[str, Any] = {**DRAFTERS[name], "adaptive": False}
    llm = load("stories", config, adapters=adapters)
    assert answer(llm, adapters, ALL) == wanted[ALL]
    before = llm.stats()
    assert answer(llm, adapters, ADAPTED) == wanted[ADAPTED]
    proposed, accepted = (llm.stats()[key] - before[key] for key in ("proposed", "accepted"))
    assert 5 < accepted < proposed
    assert not llm.loaded.engine.drafts.calls.ended
