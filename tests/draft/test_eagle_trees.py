"""EAGLE and EAGLE-3 draft trees: those that the layer's arithmetic makes, and no token changes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_eagle
import test_eagle3
from eagle3_heads import Eagle3Reference, choose_ids
from small_engine import ROOMY, TIGHT, drain, make_engine, make_model, make_prompts, make_requests
from test_eagle3 import OFFSETS, TAPPED, fit, write

from flyweight import LLM, SamplingParams
from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.eagle import EagleModel
from flyweight.draft.eagle3 import Eagle3Model
from flyweight.draft.eagle3folder import load_eagle3
from flyweight.draft.eaglefolder import load_eagle
from flyweight.draft.latepairs import LatePairs
from flyweight.draft.statedrafter import StateDrafter
from flyweight.draft.treegrowth import TreeGrower, count_scratch
from flyweight.draft.treerules import FixedTree, LikelyTree, TreeRule
from flyweight.engine import branches as branches_room
from flyweight.errors import ConfigError, FlyweightError
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.ops.reference import ReferenceOps
from flyweight.speculation import read_speculation
from flyweight.validation.token_tree import read_token_tree

PROMPTS = make_prompts(6)
SHAPE = read_token_tree("[(0,), (1,), (0, 0), (0, 1), (1, 0), (2,), (0, 0, 0), (0, 1, 0)]", "x", 64)
RULES: dict[str, TreeRule] = {"likely": LikelyTree(3, 8), "fixed": FixedTree(SHAPE)}
WIDE, NARROW = replace(ROOMY, draft_tokens=8), replace(TIGHT, draft_tokens=8, blocks=26)
CHUNKED = replace(WIDE, max_chunk=5, prefix_caching=False)

Path_ = tuple[int, ...]


@cache
def grow_expected(reference: "Cached", tokens: Path_, limit: int, width: int) -> dict[Path_, float]:
    """The likeliest `limit` paths and their log-probabilities, of beams of `width`."""
    found: dict[Path_, float] = {}
    beams: list[tuple[Path_, float]] = [((), 0.0)]
    states = reference.read(tokens[:-1])
    for _ in range(limit):
        level = []
        for path, score in beams:
            ranked = reference.rank(tokens, path, states)
            best = np.argsort(-ranked)[:width]
            level += [((*path, int(token)), score + float(ranked[token])) for token in best]
        found |= dict(level)
        beams = sorted(level, key=lambda one: -one[1])[:width]
    return dict(sorted(found.items(), key=lambda one: -one[1])[:limit])


class Cached(Eagle3Reference):
    """A reference whose answers are kept."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class CheckedTrees(StateDrafter):
    """Compares the likeliest trees of greedy requests with the reference's."""

    reference: Cached | None = None
    compared = wrong = trees = deepest = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            params = request.sampling
            self.trees += draft.parents != tuple(range(-1, len(draft.tokens) - 1))
            plain = params.temperature == 0 and params.options and params.options.plain
            if self.reference is not None and plain:
                expected = grow_expected(self.reference, tuple(request.tokens), request.limit, 3)
                self.compared += 1
                self.wrong += list_paths(draft) != set(expected)
                self.deepest = max(self.deepest, *map(len, expected))
        return drafts


def list_paths(draft: Draft) -> set[Path_]:
    paths: list[Path_] = []
    assert draft.parents is not None
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)


def make_drafter(path: Path, model: Decoder, limits: Any, rule: TreeRule | None) -> CheckedTrees:
    """Of EAGLE-3 or EAGLE, by the folder's name; without a rule, of chains."""
    room = replace(limits, blocks=limits.blocks + count_scratch(rule, limits.block_size))
    layer: Any
    if path.name == "eagle3":
        source = test_eagle3.open_folder(path, model)
        own = load_eagle3(source, model)
        layer = Eagle3Model(model, own, source.layout, limits.max_model_len)
    else:
        source = test_eagle.open_folder(path, model)
        layer = EagleModel(model, *load_eagle(source, model), limits.max_model_len)
    layers = allocate_kv(source.spec, model.ops, room, "f32")
    return CheckedTrees(layer, layers, limits.blocks, rule)


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(ReferenceOps("f32"))


@pytest.fixture
def folder(tmp_path: Path, model: Decoder) -> Path:
    return write(tmp_path / "eagle3", fit(model), offsets=OFFSETS, **TAPPED)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts accepted branches."""
    right, counts = branches_room.keep, [0]

    def keep(pool: Any, table: Any, branches: Any, accepted: int) -> None:
        before = table.blocks
        right(pool, table, branches, accepted)
        counts[0] += table.blocks is not before

    monkeypatch.setattr(branches_room, "keep", keep)
    return counts


def compare(model: Decoder, path: Path, limits: Any) -> CheckedTrees:
    drafter = make_drafter(path, model, limits, RULES["likely"])
    drafter.reference = Cached(model, fit(model), known=choose_ids().tolist())
    requests = [r for r in make_requests(PROMPTS, 16) if r.params.temperature == 0]
    drain(make_engine(model, limits, drafter), requests)
    return drafter


@pytest.mark.parametrize("limits", [WIDE, CHUNKED])
def test_trees_are_the_likeliest_paths(
    model: Decoder, folder: Path, limits: Any, kept: list[int]
) -> None:
    found = compare(model, folder, limits)
    assert found.compared > 10 and found.wrong == 0 and found.trees > 10
    assert found.deepest > 3 and kept[0] > 2


def test_pairs_left_out_after_a_branch_are_caught(
    model: Decoder, folder: Path, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = LatePairs.claim

    def forgetful(self: LatePairs, row: Any, *rest: Any) -> Any:
        drafted = self._done.get(row.request.id, 0) > 0
        found = right(self, row, *rest)
        return [] if drafted else found

    monkeypatch.setattr(LatePairs, "claim", forgetful)
    found = compare(model, folder, WIDE)
    assert found.wrong > 0 and kept[0] > 0


def test_a_path_that_sees_its_sibling_is_caught(
    model: Decoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = TreeGrower._lay_tables

    def mixed(self: TreeGrower, growing: Any, before: Any, level: int) -> Any:
        first = {
            id(tree): path for (tree, _), path in zip(growing[::-1], before[::-1], strict=True)
        }
        return right(self, growing, [first[id(tree)] for tree, _ in growing], level)

    monkeypatch.setattr(TreeGrower, "_lay_tables", mixed)
    found = compare(model, folder, WIDE)
    assert found.compared > 10 and found.wrong > 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("backend", "limits"),
    [("cpu", WIDE), ("cpu", NARROW), ("cpu", CHUNKED), ("reference", NARROW)],
)
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_no_token_changes(
    tmp_path: Path, model: Decoder, method: str, backend: str, limits: Any, rule: str,
    kept: list[int],
) -> None:  # fmt: skip
    if method == "eagle3":
        path = write(tmp_path / method, fit(model), offsets=OFFSETS, **TAPPED)
    else:
        path = test_eagle.write(tmp_path / method, test_eagle.make_tensors())
    own = make_model(CpuOps(1, None, "f32")) if backend == "cpu" else model
    requests = make_requests(PROMPTS)
    expected = {}
    for request in requests:
        expected |= drain(make_engine(own), [request])
    drafter = make_drafter(path, own, limits, RULES[rule])
    engine = make_engine(own, limits, drafter)
    assert drain(engine, requests) == expected
    found = engine.metrics
    assert found.proposed > found.accepted > 0 and found.drafts > 20
    assert drafter.trees > 20
    assert kept[0] > 0 or (method, limits) == ("eagle", NARROW)  # few of its drafts are right
    assert bool(found.preempted) == (limits is NARROW)
    assert bool(found.cached) == limits.prefix_caching
    assert not found.drafting_ended and not engine.drafts.calls.ended


def test_a_tree_accepts_more_than_its_chain(model: Decoder, folder: Path) -> None:
    """The chain is the tree's likeliest path, here of as many tokens."""
    reached = []
    for rule in (LikelyTree(1, 8), LikelyTree(3, 8)):
        engine = make_engine(model, WIDE, make_drafter(folder, model, WIDE, rule))
        drain(engine, make_requests(PROMPTS))
        reached.append(engine.metrics.accepted / engine.metrics.drafts)
    assert reached[1] > reached[0]


GIVEN: dict[str, Any] = {"method": "eagle", "model": "stories-eagle", "adaptive": False}
TREES: dict[str, dict[str, Any]] = {
    "likely": {"num_speculative_tokens": 8, "tree_width": 3},
    "fixed": {
        "num_speculative_tokens": 4,
        "speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1)]",
    },
}


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_is_configured(tree: str) -> None:
    given = {**GIVEN, **TREES[tree]}
    found = read_speculation(given)
    assert found is not None and found.write() == given
    params = SamplingParams(temperature=0, max_tokens=24)
    plain = LLM(max_model_len=64).generate("Once upon a time", params, use_tqdm=False)
    drafted = LLM(max_model_len=64, speculative_config=given)
    other = drafted.generate("Once upon a time", params, use_tqdm=False)
    assert other[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert drafted.loaded.engine.metrics.accepted > 0
    chain = {**GIVEN, "num_speculative_tokens": 8}
    less = LLM(max_model_len=64, speculative_config=chain).loaded.memory
    assert drafted.loaded.memory.draft_scratch > 0 == less.draft_scratch


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tree_width": 17}, "tree_width = 17 is out of range; allowed: a whole number, 1 to 16"),
        ({"tree_width": 0}, "tree_width = 0 is out of range"),
        ({"tree_width": 2, "verifier": "rejection"}, "verifier = 'rejection' .*with tree_width"),
        ({"tree_width": 2, "speculative_token_tree": "[(0,)]"}, "tree_width does not go with"),
        ({"speculative_token_tree": "[(0,), (1,)]"}, "is not the number of paths"),
        ({"speculative_token_tree": "[(0,"}, "speculative_token_tree = .* is not valid"),
    ],
)
def test_trees_that_are_none_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, FlyweightError), match=message) as refused:
        LLM(max_model_len=64, speculative_config={**GIVEN, "num_speculative_tokens": 8, **more})
    assert "\n" not in str(refused.value)
