"""Drafts that are trees change no bit, on any target, with every type of K/V."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness import MODELS, decoder
from random_models import Answer, answers, engine, random_model, request
from test_adapters import ADAPTERS, NAMES

from flyweight.draft.drafter import DraftRequest
from flyweight.engine.engine import Engine
from flyweight.models.decoder import Decoder
from flyweight.ops.base import Ops
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import KV_TYPES
from flyweight.types import Request, RequestWords
from tree_drafter import TreeDrafter

LENGTHS = (1, 15, 31, 70, 505)  # prompts around blocks, tiles and attention splits
LIKELY = {3: 6.0, 4: 6.0, 5: 6.0}


def requested(lengths: tuple[int, ...], most: int = 14) -> list[Request]:
    """Greedy, sampled, several choices, penalties and log-probabilities."""
    rng = np.random.default_rng(5)
    kinds: list[dict[str, object]] = [
        {"temperature": 0, "logit_bias": {}},
        {"temperature": 0.9, "top_p": 0.9, "n": 2},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "repeat_last_n": 4},
        {"temperature": 0.8, "top_k": 20, "logit_bias": {}},
        {"dry_multiplier": 1.5, "dry_allowed_length": 1, "min_tokens": 5},
    ]
    made = []
    for i, n in enumerate(lengths):
        options = {"logit_bias": LIKELY, **kinds[i % len(kinds)]}
        made.append(request(f"t{n}", rng.integers(0, 110, n).tolist(), most, seed=i, **options))
    words = RequestWords(bad=((3, 4),), breakers=frozenset({6}))
    return [replace(r, words=words) for r in made]


def propose_trees(
    guessing: Engine, wanted: dict[tuple[str, int], Answer], requests: list[Request]
) -> Counter[str]:
    """Has the engine draft the right tokens among wrong ones; counts the rows of branches that its
    steps have.
    """
    prompts = {r.id: len(r.tokens) for r in requests}
    seen = Counter[str]()

    def find_right(ask: DraftRequest) -> tuple[int, ...]:
        return tuple(wanted[ask.id].tokens)[len(ask.tokens) - prompts[ask.id[0]] :]  # type: ignore[index]

    drafter = TreeDrafter(find_right, range(guessing.runner.model.spec.vocab))
    guessing.drafts.calls.use(drafter)

    def observe(batch: object, taps: object) -> None:
        plan = guessing._plan
        branches = len(batch.contexts) - len(plan.chunks)  # type: ignore[attr-defined]
        seen["branches"] += branches
        seen["ancestors"] += batch.ancestors is not None  # type: ignore[attr-defined]

    drafter.observe = observe  # type: ignore[method-assign]
    return seen


def check(ops: Ops, requests: list[Request], kv: str, **limits: object) -> None:
    check_model(random_model(ops, "q8_0"), requests, kv, **limits)


def check_model(
    model: Decoder, requests: list[Request], kv: str, adapters: Sequence[str] = (), **limits: object
) -> None:
    wanted: dict[tuple[str, int], Answer] = {}
    for r in requests:
        alone = engine(model, kv, adapters, max_num_batched_tokens=1024, prefix_caching=False)
        wanted |= answers(alone, [r])
    bounds = {"draft_tokens": 9, "max_num_batched_tokens": 77, **limits}
    guessing = engine(model, kv, adapters, **bounds)
    seen = propose_trees(guessing, wanted, requests)
    assert answers(guessing, requests) == wanted
    assert 0 < guessing.metrics.accepted < guessing.metrics.proposed
    assert seen["branches"] > 5 and seen["ancestors"] > 0
    assert len(guessing.scheduler.pool.free) == guessing.scheduler.pool.blocks
    if "blocks" in limits:
        assert guessing.metrics.preempted > 0


@pytest.mark.parametrize("isa", available_isas())
def test_trees_change_nothing_on_any_target(isa: str) -> None:
    slow = isa == "scalar"
    requests = requested(LENGTHS[: 2 if slow else 5], 9 if slow else 14)
    for kv in KV_TYPES:
        check(CpuOps(2, isa, "int8"), requests, kv)


@pytest.mark.parametrize("activations", ["bf16", "f32"])
def test_trees_change_nothing_with_any_activations(activations: str) -> None:
    check(CpuOps(1, None, activations), requested(LENGTHS), "bf16", block_size=32)


def test_trees_change_nothing_on_the_reference() -> None:
    check(ReferenceOps("f32"), requested((1, 15, 31, 40, 20), 9), "f32", block_size=4)


def test_trees_change_nothing_where_memory_is_short() -> None:
    """Preempted, in chunks, with prefix hits."""
    requests = requested((40, 33, 60, 25, 51), 60)
    check(CpuOps(2, None, "int8"), requests, "f16", blocks=20, max_num_batched_tokens=48)


@pytest.mark.parametrize(
    "name",
    ["gemma2", "gpt-oss", "deepseek-v2", "llama4", "mistral-window", "qwen3-moe", "gpt2"],
)
def test_trees_change_nothing_in_other_layers(name: str, native: Ops) -> None:
    """Windows, sinks, latents, chunks, experts."""
    check_model(decoder(MODELS / name, native), requested((1, 33, 70), 9), "f32")


def test_trees_change_nothing_next_to_adapters(native: Ops) -> None:
    folders = [ADAPTERS / "llama3" / name for name in NAMES]
    model = decoder(MODELS / "llama3", native, adapters=folders)
    own = zip(requested((20, 33, 15, 40)), ("", *NAMES), strict=True)
    check_model(model, [replace(r, adapter=name) for r, name in own], "f32", NAMES)
