"""The models inside the package: small enough to ship, a pair that can speculate together, and
stories that end.  Nothing here depends on what they tell, so they can be trained anew.
"""

from math import prod

import pytest

from flyweight import LLM, SamplingParams
from flyweight.describe import ASSETS, ModelDescription, describe
from flyweight.passport import KEY

STORIES, DRAFT = ASSETS / "stories.gguf", ASSETS / "stories-draft.gguf"
SEEDS = range(5)


@pytest.fixture(scope="module")
def stories() -> ModelDescription:
    return describe(STORIES)


@pytest.fixture(scope="module")
def draft() -> ModelDescription:
    return describe(DRAFT)


def parameters(found: ModelDescription) -> int:
    return sum(prod(tensor.shape) for tensor in found.checkpoint.tensors.values())


def test_the_story_model_is_small(stories) -> None:
    assert STORIES.stat().st_size <= 6_000_000
    assert 2_000 <= stories.spec.vocab <= 4_096
    assert 2_000_000 <= parameters(stories) <= 5_000_000


def test_the_draft_is_a_tenth_of_it(stories, draft) -> None:
    assert 0.05 <= parameters(draft) / parameters(stories) <= 0.15
    assert 0.05 <= DRAFT.stat().st_size / STORIES.stat().st_size <= 0.15


def test_both_speak_the_same_tokens(stories, draft) -> None:
    """Token by token and merge by merge: a draft's guesses are ids of the other's vocabulary."""
    ours, theirs = (dict(found.checkpoint.tokenizer_source) for found in (stories, draft))
    assert ours.keys() - {KEY} == theirs.keys()  # one has a passport
    for key in ("tokens", "merges", "scores", "token_type"):
        name = f"tokenizer.ggml.{key}"
        assert list(ours.get(name, ())) == list(theirs.get(name, ())), key
    assert stories.stop_ids == draft.stop_ids
    assert stories.spec.context == draft.spec.context


def test_stories_end() -> None:
    """By themselves and with a whole sentence; one of five may run into the context's end."""
    params = [SamplingParams(temperature=0.7, max_tokens=512, seed=seed) for seed in SEEDS]
    reported = LLM().generate(["Once upon a time"] * len(params), params, use_tqdm=False)
    ended = [
        one.outputs[0].text.rstrip() for one in reported if one.outputs[0].finish_reason == "stop"
    ]
    whole = [text for text in ended if text.endswith((".", "!", "?", '"', "'"))]
    assert len(whole) >= len(params) - 1, [one.outputs[0].text[-80:] for one in reported]
