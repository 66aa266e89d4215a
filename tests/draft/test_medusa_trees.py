"""Medusa heads that draft trees: the best few tokens of each head, and no token changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitted_heads import Heads, fit_heads, push, states_of
from small_engine import ROOMY, TIGHT, drain, make_engine, make_model, make_prompts, make_requests
from test_medusa import name_published, write
from test_medusa_config import config
from test_medusa_config import write as write_zeros

from flyweight import LLM, SamplingParams
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.medusa import MedusaDrafter, find_best, load_medusa, open_medusa
from flyweight.errors import ConfigError, FlyweightError
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.speculation import read_speculation
from flyweight.validation.token_tree import list_parents, read_token_tree

PROMPTS = make_prompts(6)
SHAPE = read_token_tree("[(0,), (1,), (0, 0), (0, 1), (1, 0), (2,), (0, 0, 0), (0, 1, 0)]", "x", 64)
WIDE, NARROW = replace(ROOMY, draft_tokens=8), replace(TIGHT, draft_tokens=8, blocks=22)


@pytest.fixture(scope="module")
def heads() -> Heads:
    return fit_heads(make_model(ReferenceOps("f32")), PROMPTS)


class Checked(MedusaDrafter):
    """Compares each tree with ranks of logits computed from the text alone."""

    model: Decoder
    expected: Heads
    compared = wrong = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            state = states_of(self.model, request.tokens[:-1])[-1:]
            ranked = [np.argsort(-(push(state, b) @ h.T)[0]) for b, h in self.expected]
            right = [int(ranked[len(path) - 1][path[-1]]) for path in SHAPE]
            self.wrong += list(draft.tokens) != right[: request.limit]
            self.wrong += list(draft.parents or ()) != list_parents(SHAPE)[: request.limit]
            self.compared += 1
        return drafts


def make_drafter(heads: Heads, model: Decoder, path: Path) -> Checked:
    folder = write(path, name_published(heads), "medusa_lm_head.pt")
    loaded = load_medusa(*open_medusa(folder, model.spec, "base"), model.ops)
    drafter = Checked(loaded, model.ops, model.compute_logits, ROOMY.block_size, SHAPE)
    drafter.model, drafter.expected = model, heads
    return drafter


@pytest.mark.parametrize("limits", [WIDE, NARROW])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_no_token_changes(heads: Heads, tmp_path: Path, backend: str, limits: Any) -> None:
    model = make_model(CpuOps(1, None, "f32") if backend == "cpu" else ReferenceOps("f32"))
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(model), [request])
    drafter = make_drafter(heads, model, tmp_path / "heads")
    engine = make_engine(model, limits, drafter)
    assert drain(engine, requests) == expected
    assert not drafter.wrong and drafter.compared > 50 and engine.metrics.accepted > 20
    assert bool(engine.metrics.preempted) == (limits is NARROW)


def test_a_tree_accepts_more_than_its_chain(heads: Heads, tmp_path: Path) -> None:
    """The chain is the tree's first path, so at equal places a tree never accepts less."""
    model = make_model(ReferenceOps("f32"))
    tree = make_engine(model, WIDE, make_drafter(heads, model, tmp_path / "a"))
    drafter = make_drafter(heads, model, tmp_path / "b")
    chain = make_engine(
        model, ROOMY, MedusaDrafter(drafter.heads, model.ops, model.compute_logits, 4)
    )
    for engine in (tree, chain):
        drain(engine, make_requests(PROMPTS))
    assert tree.metrics.accepted / tree.metrics.drafts > (
        chain.metrics.accepted / chain.metrics.drafts
    )


def test_the_best_of_each_row() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    for count in (1, 2, 7, 30, 40):
        assert (find_best(rows, count) == np.argsort(-rows, axis=1)[:, :count]).all()


def test_likely_paths_come_first() -> None:
    assert SHAPE[:4] == ((0,), (0, 0), (1,), (0, 0, 0))
    assert list_parents(SHAPE) == [-1, 0, -1, 1, 0, 2, -1, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[(0,)", "is not valid"),
        ("[0, 1]", "is not valid"),
        ("[(0,), (0,)]", "twice"),
        ("[()]", "is not valid"),
        ("[(True,)]", "is not valid"),
        ("__import__('os')", "is not valid"),
        ("[(0,), (1, 0)]", r"\(1, 0\) follows a path that is not in it; nearest valid: add \(1,\)"),
        ("[(64,)]", "ranks 0 to 63"),
        ("[]", "has 0 paths; allowed: 1 to 64"),
        (str([(i,) for i in range(60)] + [(0, i) for i in range(60)]), "has 120 paths"),
    ],
)
def test_shapes_that_are_none_are_refused(text: str, message: str) -> None:
    given = {"method": "medusa", "model": "x", "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match=message) as refused:
        read_speculation({**given, "speculative_token_tree": text})
    assert "speculative_token_tree" in str(refused.value) and "\n" not in str(refused.value)


def test_a_tree_is_configured_as_in_vllm(tmp_path: Path) -> None:
    folder, tree = write_zeros(tmp_path / "h"), "[(0,), (1,), (0, 0), (0, 1)]"
    given = config(folder, 4) | {"speculative_token_tree": tree}
    found = read_speculation(given)
    assert found is not None and found.write() == given
    assert read_speculation(config(folder)).write() == config(folder)  # type: ignore[union-attr]
    params = SamplingParams(temperature=0, max_tokens=16)
    plain = LLM(max_model_len=64).generate("Once upon a time", params, use_tqdm=False)
    drafted = LLM(max_model_len=64, speculative_config=given)
    other = drafted.generate("Once upon a time", params, use_tqdm=False)
    assert other[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert drafted.loaded.engine.metrics.proposed > 0


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("[(0,), (1,)]", "num_speculative_tokens.*4.*is not the number of paths.*nearest valid: 2"),
        ("[(0,), (0, 0), (0, 0, 0), (1,)]", "paths of 3 tokens, more than the 2 heads"),
    ],
)
def test_trees_that_do_not_fit_are_refused(tmp_path: Path, tree: str, message: str) -> None:
    given = config(write_zeros(tmp_path / "h"), 4) | {"speculative_token_tree": tree}
    with pytest.raises(FlyweightError, match=message):
        LLM(max_model_len=64, speculative_config=given)
