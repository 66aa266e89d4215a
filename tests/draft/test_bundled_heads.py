"""The heads inside: their size and card, tokens a step on stories that nothing was trained on, and
the same text.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flyweight import LLM, SamplingParams
from flyweight.describe import ASSETS
from flyweight.outputs import RequestOutput
from flyweight.speculation_methods import BUNDLED_HEADS

SHAPE = "[(0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (0, 0, 0), "
TREE = SHAPE + "(0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]"
BARS: dict[str, tuple[dict[str, Any], float]] = {
    "medusa": ({"num_speculative_tokens": 4}, 1.8),
    "medusa tree": ({"num_speculative_tokens": 14, "speculative_token_tree": TREE}, 2.2),
    "eagle": ({"num_speculative_tokens": 5}, 2.8),
    "eagle3": ({"num_speculative_tokens": 5}, 2.0),
    "eagle tree": ({"num_speculative_tokens": 16, "tree_width": 4}, 4.0),
}


def test_all_heads_together_are_below_a_megabyte() -> None:
    files = [file for name in BUNDLED_HEADS for file in (ASSETS / name).iterdir()]
    assert len(files) == 2 * len(BUNDLED_HEADS)
    assert sum(file.stat().st_size for file in files) <= 1_000_000


def test_the_card_has_the_size_and_the_tokens_a_step_of_all_heads() -> None:
    card = (ASSETS / "MODEL_CARD.md").read_text("utf-8")
    lengths = card.partition("**Tokens a step**")[2].partition("\n- ")[0]
    for name in BUNDLED_HEADS:
        assert f"`{name}`" in lengths
        assert f"{(ASSETS / name / 'model.safetensors').stat().st_size:,}" in card


@pytest.fixture(scope="module")
def openings() -> Callable[[Path], list[str]]:
    def read(path: Path) -> list[str]:
        stories = path.read_text("utf-8").split("<|endoftext|>\n")
        held_out = stories[round(len(stories) * 0.95) :]
        return [" ".join(story.split(" ")[:16]) for story in held_out[:12]]

    return read


def list_tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [list(one.token_ids) for request in outputs for one in request.outputs]


@pytest.mark.parametrize("name", BARS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_a_step(
    name: str,
    temperature: float,
    openings: Callable[[Path], list[str]],
    data: Callable[[str], Path],
) -> None:
    prompts = openings(data("text-tinystories/tinystories-excerpt.txt"))
    options, least = BARS[name]
    method = name.split()[0]
    config = {"method": method, "model": f"stories-{method}", "adaptive": False, **options}
    count = 1 if temperature == 0 else 4  # a dozen answers are too few for a mean
    params = SamplingParams(temperature=temperature, max_tokens=100, seed=5, n=count)
    plain = LLM(threads=1, max_model_len=192).generate(prompts, params, use_tqdm=False)
    llm = LLM(threads=1, max_model_len=192, speculative_config=config)
    found = llm.generate(prompts, params, use_tqdm=False)
    assert list_tokens(found) == list_tokens(plain)
    metrics = llm.loaded.engine.metrics
    reached = 1 + metrics.accepted / metrics.drafts
    assert metrics.drafts > 200
    assert reached >= (least if temperature == 0 else 1.3), reached
