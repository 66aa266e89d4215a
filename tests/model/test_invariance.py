"""The invariance promise: a request's tokens and log-probabilities, bit for bit, whatever else
happens.

Alone or in a batch, any chunk size, prefix hit or miss, preempted or not, any number of threads.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from harness import logits
from random_models import Answer, answers, engine, random_model, request

from flyweight.draft.ngram import NgramDrafter
from flyweight.ops.cpu import CpuOps, available_isas
from flyweight.ops.reference import ReferenceOps
from flyweight.spec import KV_TYPES
from flyweight.types import Request, RequestWords

KINDS = ("f32", "bf16", "q8_0", "q4_0", "q4_k")
ACTIVATIONS = ("int8", "bf16", "f32")
LENGTHS = (1, 5, 17, 70, 130, 300, 600)  # prompts around tiles, blocks and attention splits
ANSWER = 6
MODES = [(kind, "int8") for kind in KINDS] + [
    (kind, activations) for kind in ("q4_0", "bf16") for activations in ("bf16", "f32")
]
FEW = (("q4_k", "int8"), ("q4_0", "bf16"), ("f32", "f32"))  # every kernel of products once


def every(modes: Iterable[tuple[str, str]]) -> list[Any]:
    """Those of FEW, and in .ci/full the others."""
    rest = [pytest.param(*mode, marks=pytest.mark.long) for mode in modes if mode not in FEW]
    return [*FEW, *rest]


def prompts(seed: int = 3) -> list[Request]:
    rng = np.random.default_rng(seed)
    sampled = {"temperature": 0.9, "top_p": 0.9}
    return [
        request(
            f"r{i}",
            rng.integers(0, 331, n).tolist(),
            ANSWER,
            seed=i,
            **(sampled if i % 2 else {"temperature": 0}),
        )
        for i, n in enumerate(LENGTHS)
    ]


def alone(kind: str, activations: str, threads: int = 1) -> dict[tuple[str, int], Answer]:
    """Each request by itself, the whole prompt in one step."""
    model = random_model(CpuOps(threads, None, activations), kind)
    got: dict[tuple[str, int], Answer] = {}
    for r in prompts():
        got |= answers(engine(model, max_num_batched_tokens=1024, prefix_caching=False), [r])
    return got


@pytest.fixture(scope="module")
def truth() -> dict[tuple[str, str], dict[tuple[str, int], Answer]]:
    return {}


def expect(truth: dict, kind: str, activations: str) -> dict[tuple[str, int], Answer]:
    if (kind, activations) not in truth:
        truth[kind, activations] = alone(kind, activations)
    return truth[kind, activations]


@pytest.mark.parametrize(("kind", "activations"), every(product(KINDS, ACTIVATIONS)))
def test_batched_chunked_and_threaded(kind: str, activations: str, truth: dict) -> None:
    wanted = expect(truth, kind, activations)
    for threads, budget, block in ((1, 64, 16), (2, 33, 32), (3, 512, 16), (7, 9, 64)):
        model = random_model(CpuOps(threads, None, activations), kind)
        got = answers(engine(model, max_num_batched_tokens=budget, block_size=block), prompts())
        assert got == wanted, (threads, budget, block)


@pytest.mark.parametrize("kv", [kind.name for kind in KV_TYPES.values() if kind.coded])
def test_codes_do_not_depend_on_company(kv: str) -> None:
    """Batches, chunks, threads, blocks, prefix hits and preemption, within each type of codes."""
    model = random_model(CpuOps(1, None, "int8"), "q4_0")
    wanted: dict[tuple[str, int], Answer] = {}
    for r in prompts():
        whole = engine(model, kv, max_num_batched_tokens=1024, prefix_caching=False)
        wanted |= answers(whole, [r])
    for threads, budget, block, blocks in ((2, 33, 32, 200), (3, 512, 16, 200), (2, 64, 16, 42)):
        some = random_model(CpuOps(threads, None, "int8"), "q4_0")
        shared = engine(some, kv, max_num_batched_tokens=budget, block_size=block, blocks=blocks)
        for _ in range(2):  # the second time with prefix hits
            assert answers(shared, prompts()) == wanted, (threads, budget, block)


@pytest.mark.parametrize(("kind", "activations"), every(MODES))
def test_prefix_hits_change_nothing(kind: str, activations: str, truth: dict) -> None:
    wanted = expect(truth, kind, activations)
    shared = engine(random_model(CpuOps(2, None, activations), kind))
    assert answers(shared, prompts()) == wanted
    assert answers(shared, prompts()) == wanted
    assert shared.metrics.cached > sum(LENGTHS) / 2


@pytest.mark.parametrize(("kind", "activations"), every(MODES))
def test_preemption_changes_nothing(kind: str, activations: str, truth: dict) -> None:
    wanted = expect(truth, kind, activations)
    tight = engine(random_model(CpuOps(2, None, activations), kind), blocks=42)
    assert answers(tight, prompts()) == wanted
    model = random_model(CpuOps(2, None, activations), kind)
    crowded = engine(model, blocks=42, max_num_batched_tokens=700)
    longer = [request(f"x{i}", [i] * 150, 80, seed=i) for i in range(4)]
    alone_longer: dict[tuple[str, int], Answer] = {}
    for r in longer:
        alone_longer |= answers(engine(model), [r])
    assert answers(crowded, longer) == alone_longer
    assert crowded.metrics.preempted > 0


@pytest.mark.parametrize("isa", available_isas())
def test_drafts_change_nothing_on_any_target(isa: str) -> None:
    """With every type of K/V cache; two likely tokens, so that guesses come true."""
    rng, likely = np.random.default_rng(4), {3: 100.0, 4: 100.0}
    near = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "repeat_last_n": 3}
    few = [
        request(f"d{n}", rng.integers(0, 331, n).tolist(), 12, seed=n, logit_bias=likely, **near)
        for n in (1, 17, 70, 300)[: 2 if isa == "scalar" else 4]
    ]
    for kv in KV_TYPES:
        ops = CpuOps(1, isa, "int8")
        plain = engine(random_model(ops, "q8_0"), kv, max_num_batched_tokens=1024)
        wanted = answers(plain, few)
        ops = CpuOps(3, isa, "int8")
        guessing = engine(random_model(ops, "q8_0"), kv, max_num_batched_tokens=33, draft_tokens=4)
        guessing.drafts.calls.use(NgramDrafter(3, 1))
        assert answers(guessing, few) == wanted, kv
        assert 0 < guessing.metrics.accepted < guessing.metrics.proposed


DECODING: list[dict[str, object]] = [
    {"dry_multiplier": 1.5, "dry_allowed_length": 1, "top_p": 0.9},
    {"typical_p": 0.6, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"top_n_sigma": 1.0, "allowed_token_ids": list(range(40))},
    {"temperature": 0},
    {"mirostat": 1, "n": 2},  # the youngest are preempted first
    {"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.5},
]


def test_every_way_of_decoding_is_invariant() -> None:
    """In a batch, with drafts, preempted again and again: what a sequence's own history decides is
    decided the same.
    """
    likely = {3: 4.0, 4: 4.0, 5: 4.0}  # so that there are repetitions, and guesses
    requested = [
        request(f"d{i}", [i, 7] * 40, 60, seed=i, logit_bias=likely, **options)
        for i, options in enumerate(DECODING)
    ]
    words = RequestWords(bad=((3, 4), (5, 5, 5)), breakers=frozenset({6}))
    requested = [replace(r, words=words) for r in requested]
    model = random_model(CpuOps(2, None, "int8"), "q8_0")
    wanted: dict[tuple[str, int], Answer] = {}
    for r in requested:
        wanted |= answers(engine(model, prefix_caching=False), [r])
    assert answers(engine(model, max_num_batched_tokens=23), requested) == wanted
    tight = engine(model, blocks=20)
    assert answers(tight, requested) == wanted and tight.metrics.preempted > 1
    guessing = engine(model, draft_tokens=4)
    guessing.drafts.calls.use(NgramDrafter(2, 1))
    assert answers(guessing, requested) == wanted and guessing.metrics.accepted > 0
    for answer in wanted.values():
        pairs = zip(answer.tokens, answer.tokens[1:], strict=False)
        assert (3, 4) not in set(pairs), "a bad word"


@pytest.mark.parametrize("kind, activations", [("q4_k", "int8"), ("bf16", "bf16"), ("f32", "f32")])
def test_a_prompts_logprobs_are_invariant(kind: str, activations: str) -> None:
    """Alone or in a batch, in chunks of any size, preempted; never from the prefix cache, which
    they fill all the same.
    """
    model = random_model(CpuOps(2, None, activations), kind)
    rng = np.random.default_rng(8)
    requested = [
        request(
            f"p{n}", rng.integers(0, 331, n).tolist(), 5, prompt_logprobs=4, seed=n, n=1 + n % 2
        )
        for n in (1, 2, 17, 70, 301, 600)
    ]
    wanted: dict[tuple[str, int], Answer] = {}
    for r in requested:
        whole = engine(model, max_num_batched_tokens=1024, scored=1024, prefix_caching=False)
        wanted |= answers(whole, [r])
    counts = [len(wanted[r.id, 0].prompt) for r in requested]
    assert counts == [len(r.tokens) - 1 for r in requested]
    for budget, scored in ((1024, 256), (64, 256), (33, 7), (1024, 1)):
        shared = engine(model, max_num_batched_tokens=budget, scored=scored)
        assert answers(shared, requested) == wanted, (budget, scored)
        assert answers(shared, requested) == wanted, (budget, scored)
        plain = replace(requested[-1], params=replace(requested[-1].params, prompt_logprobs=None))
        known = answers(shared, [replace(plain, id="again")])
        assert known["again", 0].tokens == wanted["p600", 0].tokens
        assert shared.metrics.cached >= 592
    tight = engine(model, blocks=42, max_num_batched_tokens=100)
    assert answers(tight, requested) == wanted


def test_a_prompts_logprobs_are_the_dense_ones() -> None:
    """Against the NumPy backend's logits of the whole prompt at once."""
    prompt = np.random.default_rng(9).integers(0, 331, 90)
    native = random_model(CpuOps(2, None, "f32"), "f32")
    got = answers(engine(native, "f32"), [request("a", prompt.tolist(), 1, prompt_logprobs=3)])
    dense = logits(random_model(ReferenceOps("f32"), "f32"), prompt, np.arange(89)).astype(float)
    want = dense - np.logaddexp.reduce(dense, axis=1, keepdims=True)
    for i, found in enumerate(got["a", 0].prompt):
        order = np.argsort(-want[i], kind="stable")
        assert found.chosen == pytest.approx(want[i, prompt[i + 1]], abs=1e-4)
        assert found.rank == 1 + int(np.flatnonzero(order == prompt[i + 1])[0])
        assert found.top == pytest.approx(want[i][order[:3]].tolist(), abs=1e-4)


def test_choices_share_the_prompt_and_differ() -> None:
    model = random_model(CpuOps(2, None, "int8"), "q8_0")
    one = answers(engine(model), [request("a", [7] * 40, 8, n=3, temperature=1.0, seed=5)])
    again = answers(
        engine(model, max_num_batched_tokens=11),
        [request("a", [7] * 40, 8, n=3, temperature=1.0, seed=5)],
    )
    assert one == again
    assert len({a.tokens for a in one.values()}) > 1


@pytest.mark.parametrize(("kind", "activations"), every(product(KINDS, ACTIVATIONS)))
def test_linear_rows_never_depend_on_their_number(kind: str, activations: str) -> None:
    """Row counts 1 to 70, N on either side of every tile edge."""
    from random_models import random_weight

    rng = np.random.default_rng(1)
    pools = [CpuOps(t, None, activations) for t in (1, 2, 3, 7)]
    for n in (1, 15, 16, 17, 31, 33, 172):
        part = random_weight(rng, kind, n, 512)
        x = rng.standard_normal((70, 512)).astype(np.float32)
        weights = [ops.pack((n, 512), [part]) for ops in pools]
        whole = pools[0].linear(x, weights[0])
        for rows in range(1, 71):
            ops, w = pools[rows % 4], weights[rows % 4]
            assert (ops.linear(x[:rows], w) == whole[:rows]).all(), (n, rows)
            assert (ops.linear(x[70 - rows :], w) == whole[70 - rows :]).all(), (n, rows)
