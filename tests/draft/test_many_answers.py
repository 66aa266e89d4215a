"""Layers of tiny models, EAGLE-3 over a part of the vocabulary and multi-token prediction, on more
than 200 prompts with every option that decides on a token: none changes, with chains and with
trees.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import test_eagle_trees
import test_mtp
from eagle3_heads import write
from predicting_model import fit_tensors, load_model, write_model
from small_engine import (
    OPTIONS,
    ROOMY,
    drain,
    make_engine,
    make_model,
    make_prompts,
    make_varied_requests,
)
from test_eagle3 import OFFSETS, TAPPED, fit
from test_eagle_trees import SHAPE

from flyweight.config import Limits
from flyweight.draft.statedrafter import StateDrafter
from flyweight.draft.treerules import FixedTree, LikelyTree, TreeRule
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.types import OPTIONS as DECLARED

REQUESTS = make_varied_requests(make_prompts(224))
FITTED = make_prompts(6)  # prompts that the layers were fitted to
WIDE = replace(ROOMY, draft_tokens=8, max_num_seqs=16, max_num_batched_tokens=192, blocks=400)
MIXES = {
    "roomy": WIDE,
    "tight": replace(WIDE, max_chunk=5, max_num_batched_tokens=64, blocks=64),
}
TREE = "[(0,), (1,), (0, 0), (0, 1), (1, 0), (2,), (0, 0, 0), (0, 1, 0)]"
SHAPES: dict[str, tuple[TreeRule | None, dict[str, Any]]] = {  # of EAGLE-3, and MTP's keys
    "chain": (None, {}),
    "likely": (LikelyTree(3, 8), {"tree_width": 3}),
    "fixed": (FixedTree(SHAPE), {"speculative_token_tree": TREE}),
}


class Target(NamedTuple):
    """A model, the drafter of its layer, and its answers without drafts."""

    model: Decoder
    make_drafter: Callable[[Limits, str], StateDrafter]
    wanted: dict[tuple[str, int], list[int]]


def make_target(model: Decoder, make_drafter: Callable[[Limits, str], StateDrafter]) -> Target:
    return Target(model, make_drafter, drain(make_engine(model), REQUESTS))


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Target:
    model = make_model(CpuOps(1, None, "f32"))
    path = write(tmp_path_factory.mktemp("h") / "eagle3", fit(model), offsets=OFFSETS, **TAPPED)

    def make_drafter(limits: Limits, shape: str) -> StateDrafter:
        return test_eagle_trees.make_drafter(path, model, limits, SHAPES[shape][0])

    return make_target(model, make_drafter)


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("mtp")
    path = write_model(folder / "fitted", fit_tensors(folder / "random", FITTED))
    model, checkpoint = load_model(path, CpuOps(1, None, "f32"))

    def make_drafter(limits: Limits, shape: str) -> StateDrafter:
        keys = {"num_speculative_tokens": 8, **SHAPES[shape][1]}
        return test_mtp.make(model, checkpoint, limits, **keys)

    yield make_target(model, make_drafter)
    checkpoint.close()


def test_every_option_that_decides_on_a_token_is_given() -> None:
    given = {name for options in OPTIONS for name in options}
    assert {name for name, option in DECLARED.items() if option.column} <= given


@pytest.mark.long
@pytest.mark.parametrize("limits", MIXES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layer", ["eagle3", "mtp"])
def test_no_token_changes(
    layer: str, shape: str, limits: str, request: pytest.FixtureRequest
) -> None:
    target: Target = request.getfixturevalue(layer)
    engine = make_engine(target.model, MIXES[limits], target.make_drafter(MIXES[limits], shape))
    assert drain(engine, REQUESTS) == target.wanted
    found = engine.metrics
    assert found.proposed > found.accepted > 50
    assert bool(found.preempted) == (limits == "tight")
    assert not found.drafting_ended and not engine.drafts.calls.ended
