"""A model that drafts for itself proposes what it draws, token for token, wherever its K/V has
been; another model's drafts change no token.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from random_models import Answer, answers, engine, random_model, request

from flyweight.draft.drafter import DraftRequest, DraftSampling
from flyweight.draft.latetokens import FEW, LateTokens
from flyweight.draft.model import DraftRow, ModelDrafter
from flyweight.engine.draft_limits import DraftCandidate, DraftDepth, FullDrafts
from flyweight.engine.engine import Engine
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.types import Request
from flyweight.wire import Batch

LIKELY = {3: 9.0, 4: 9.0, 5: 8.0}  # few tokens to choose from: some of another's drafts come true
OPTIONS: tuple[dict[str, object], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20, "n": 3},
    {"temperature": 0.8, "min_p": 0.02},
    {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0, "presence_penalty": 0.8, "repeat_last_n": 9, "n": 2},
    {"temperature": 1.2, "typical_p": 0.8},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05, "min_tokens": 20},
    {"temperature": 0.9, "dry_multiplier": 1.0, "dry_allowed_length": 1, "logit_bias": LIKELY},
)


def requests(count: int = 18, answer: int = 24) -> list[Request]:
    """Prompts of many lengths, some of which begin alike, with all kinds of options."""
    rng = np.random.default_rng(5)
    stem = rng.integers(0, 331, 40).tolist()
    made = []
    for i in range(count):
        own = rng.integers(0, 331, int(rng.integers(1, 70))).tolist()
        tokens = stem + own if i % 3 == 0 else own
        made.append(request(f"r{i}", tokens, answer, seed=i, **OPTIONS[i % len(OPTIONS)]))
    return made


def drafting(target: Decoder, draft: Decoder, kv: str = "f16", **limits: object) -> Engine:
    """An engine whose drafter runs `draft` in the same blocks."""
    made = engine(target, kv, draft_tokens=4, **limits)
    given = made.scheduler.limits
    layers = allocate_kv(draft.spec, draft.ops, given, kv)
    made.runner.draft_kv = layers
    late = LateTokens(given.blocks, given.block_size, given.max_num_batched_tokens)
    made.drafts.__init__(ModelDrafter(draft, layers, late), made.scheduler, made.metrics)
    return made


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_model(CpuOps(2), "q8_0")


@pytest.fixture(scope="module")
def truth(target: Decoder) -> dict[tuple[str, int], Answer]:
    """Without drafts, one request after the other."""
    found: dict[tuple[str, int], Answer] = {}
    for one in requests():
        found |= answers(engine(target, prefix_caching=False), [one])
    return found


MIXES: dict[str, dict[str, object]] = {
    "plain": {"max_num_batched_tokens": 1024},
    "chunked": {"max_num_batched_tokens": 37, "max_chunk": 13},
    "large blocks": {"block_size": 32},
    "tight": {"blocks": 12, "max_num_batched_tokens": 300},
    "no prefix cache": {"prefix_caching": False},
    "one at a time": {"max_num_seqs": 3},
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_model_that_drafts_for_itself_is_always_right(target, truth, mix) -> None:
    made = drafting(target, target, **MIXES[mix])
    assert answers(made, requests()) == truth
    assert answers(made, requests()) == truth  # with prefix hits
    assert made.metrics.accepted == made.metrics.proposed > 500
    if mix == "tight":
        assert made.metrics.preempted > 0
    elif mix != "no prefix cache":
        assert made.metrics.cached > 500


@pytest.mark.parametrize("mix", MIXES)
def test_another_models_drafts_change_nothing(target, truth, mix) -> None:
    made = drafting(target, random_model(CpuOps(2), "q8_0", seed=1), **MIXES[mix])
    assert answers(made, requests()) == truth
    assert 0 < made.metrics.accepted < made.metrics.proposed


@pytest.mark.parametrize("kv", ["bf16", "int8", "int4"])
def test_with_other_types_of_kv(target, kv) -> None:
    wanted = answers(engine(target, kv, block_size=32), requests(6))
    made = drafting(target, target, kv, block_size=32)
    assert answers(made, requests(6)) == wanted
    assert made.metrics.accepted == made.metrics.proposed > 0


def test_a_fork_goes_on_with_drafts(target) -> None:
    made = drafting(target, target)
    made.add(request("a", range(30), 40, temperature=0.9, seed=3))
    for _ in range(3):
        made.step()
    made.fork("a")
    got: dict[int, list[int]] = {0: [], 1: []}
    while made.busy:
        for event in made.step():
            got[event.index] += event.tokens
    assert made.metrics.accepted == made.metrics.proposed > 0
    assert got[0][-20:] != got[1][-20:]


class ChangingDepths(FullDrafts):
    """Drafts of changing lengths, some steps without any, and some only to be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)

    def end(self, shape: object, ended: float, now: float) -> bool:
        return bool(self.rng.random() < 0.8)

    def choose(self, seqs: Sequence[DraftCandidate], batch: int) -> list[DraftDepth]:
        most = self.rng.integers(0, 6, len(seqs)).tolist()
        return [DraftDepth(min(one.limit, n), n != 2) for one, n in zip(seqs, most, strict=True)]


@pytest.mark.parametrize("mix", MIXES)
def test_steps_without_drafts_leave_no_gap(target, truth, mix) -> None:
    made = drafting(target, target, **MIXES[mix])
    made.drafts.limits = ChangingDepths()
    assert answers(made, requests()) == truth
    assert answers(made, requests()) == truth
    assert made.metrics.accepted == made.metrics.proposed > 100


class Seldom(FullDrafts):
    """Wants drafts after each `every`th step, none where that is 0."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.step = every, 0

    def end(self, shape: object, ended: float, now: float) -> bool:
        self.step += 1
        return bool(self.every) and self.step % self.every == 0


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """How many tokens each call of a draft model computes, of those that draft with `layers`."""
    found: list[int] = []
    compute = ModelDrafter._compute

    def count(self: ModelDrafter, rows: Sequence[DraftRow], sampling: object) -> object:
        found.append(sum(len(row.pending) for row in rows))
        return compute(self, rows, sampling)

    monkeypatch.setattr(ModelDrafter, "_compute", count)
    return found


def test_nothing_is_computed_while_no_draft_is_wanted(target, truth, sizes) -> None:
    made = drafting(target, target)
    made.drafts.limits = Seldom(0)
    assert not made.drafts.calls.observes
    assert answers(made, requests()) == truth
    assert sizes == []


def test_tokens_are_computed_once(target, sizes) -> None:
    """The prompt before the first draft, what follows in drafts; a draft's last token is computed
    with the newest.
    """
    made = drafting(target, target)
    answers(made, [request("a", range(30), 26, temperature=0.9, seed=1)])
    assert made.metrics.steps == 6  # 1 + 5 * 5 tokens
    assert sizes == [30, 1, 1, 1, 1] + 4 * [2, 1, 1, 1]


@pytest.mark.parametrize("every", [3, FEW - 1, FEW, 20])
def test_a_few_late_tokens_are_computed_with_the_newest(target, sizes, every) -> None:
    """More of them come before, in a call that is no part of the draft's price."""
    made = drafting(target, target)
    made.drafts.limits = Seldom(every)
    answers(made, [request("a", [5], every + 5, temperature=0.9, seed=1)])
    assert made.metrics.accepted == made.metrics.proposed == 4
    first = [every + 1] if every <= FEW else [every, 1]
    assert sizes == [*first, 1, 1, 1]


@pytest.mark.parametrize("every", [1, 2, 7])
def test_no_more_is_computed_at_once_than_a_step_may_have(target, truth, sizes, every) -> None:
    """Drafts begin once a text is read; those that are given are all right."""
    made = drafting(target, target, max_num_batched_tokens=37, max_chunk=13)
    made.drafts.limits = Seldom(every)
    assert answers(made, requests()) == truth
    assert made.metrics.accepted == made.metrics.proposed > 20
    assert 30 < max(sizes) <= 37


def test_choices_of_one_prompt_compute_it_once(target, sizes) -> None:
    """As long as they share its blocks."""
    made = drafting(target, target, max_num_batched_tokens=512)
    answers(made, [request("a", range(161), 8, temperature=1.0, seed=1, n=3)])
    assert made.metrics.accepted == made.metrics.proposed > 0
    assert sizes[0] == 161


def test_what_a_tenant_left_in_its_blocks_is_no_others() -> None:
    """The same tokens in the same slots are computed again."""
    late = LateTokens(4, 16)
    tokens = list(range(20))
    own, other = (DraftRequest(i, tokens, [2, 0], 1, tenant=i) for i in "ab")
    assert late.find_first(own, 19) == 0
    late.claim(own, 20)
    again = DraftRequest("c", tokens, [2, 0], 1, tenant="a")
    assert late.find_first(again, 20) == 20
    assert late.find_first(other, 19) == 0


def test_what_is_computed_ends_where_a_text_differs() -> None:
    late = LateTokens(4, 16)
    tokens = list(range(20))
    late.find_first(DraftRequest("a", tokens, [2, 0], 1), 20)
    late.claim(DraftRequest("a", tokens, [2, 0], 1), 20)
    for place in (0, 7, 15, 16, 18):
        changed = [*tokens[:place], 99, *tokens[place + 1 :]]
        assert late.find_first(DraftRequest(place, changed, [2, 0], 1), 19) == place
    assert late.find_first(DraftRequest("b", tokens, [2, 1], 1), 19) == 16
    late.copy(np.arange(16), np.arange(16, 32))  # block 0 to block 1
    assert late.find_first(DraftRequest("b", tokens, [2, 1], 1), 19) == 19
    late.copy(np.arange(48, 64), np.arange(32, 48))  # block 3, which is empty, to block 2
    assert late.find_first(DraftRequest("c", tokens, [2, 0], 1), 19) == 0
    late.forget_all()
    assert late.find_first(DraftRequest("a", tokens, [2, 0], 1), 19) == 0


def test_a_draft_that_was_rejected_is_not_taken_for_the_text() -> None:
    late = LateTokens(4, 16)
    text = DraftRequest("a", [5, 6, 7], [0], 3)
    late.find_first(text, 2)
    key = late.claim(text, 3)
    for position, token in enumerate([8, 9], 3):
        key = late.add(text, position, key, token)
    assert late.find_first(DraftRequest("a", [5, 6, 7, 8, 9, 1], [0], 3), 5) == 5
    late.forget("a")
    assert late.find_first(DraftRequest("a", [5, 6, 7, 8, 4, 1], [0], 3), 5) == 4
    late.forget("a")
    assert late.find_first(DraftRequest("a", [5, 6, 7, 4, 9, 1], [0], 3), 5) == 3


def test_a_failure_leaves_nothing_that_counts_as_computed(target, truth, monkeypatch) -> None:
    """The drafter is called again for each request alone; what it proposes then is right."""
    made = drafting(target, target, max_num_batched_tokens=1024)
    compute, calls = Decoder.compute_hidden, []

    def fail_once(self: Decoder, batch: Batch, kv: Sequence, rows: object) -> object:
        if kv is made.drafts.calls.drafter.layers:
            calls.append(len(batch.contexts))
            if len(calls) > 9 and len(batch.contexts) > 1 and max(calls) != 99:
                calls.append(99)
                raise ValueError("out of order")
        return compute(self, batch, kv, rows)

    monkeypatch.setattr(Decoder, "compute_hidden", fail_once)
    assert answers(made, requests()) == truth
    assert 99 in calls
    assert made.metrics.accepted == made.metrics.proposed > 100


def _trust_all(self: LateTokens, request: DraftRequest, stop: int) -> int:
    first = FIND(self, request, stop)
    if first < stop - 2:
        first = stop - 2
        self._computed[request.id] = first, 0
    return first


def _draw_at_the_wrong_place(self: DraftRow) -> object:
    found = KEPT(self)
    return found._replace(position=found.position - 1)


KEPT, FIND = DraftRow.make_logits_row, LateTokens.find_first


@pytest.mark.parametrize(
    "owner, name, bug",
    [
        (DraftRow, "make_logits_row", _draw_at_the_wrong_place),
        (LateTokens, "find_first", _trust_all),
    ],
)
def test_a_seeded_bug_costs_acceptance_only(
    target, truth, monkeypatch, owner: type, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, bug)
    made = drafting(target, target)
    made.drafts.limits = ChangingDepths()
    assert answers(made, requests()) == truth
    assert made.metrics.accepted < made.metrics.proposed


def test_copies_that_are_not_made_in_the_draft_are_noticed(target, truth) -> None:
    made = drafting(target, target)
    made.runner.draft_kv = ()
    assert answers(made, requests()) == truth
    assert made.metrics.accepted < made.metrics.proposed


def test_pool_stays_whole(target) -> None:
    made = drafting(target, target, blocks=12)
    for one in requests():
        made.add(one)
    while made.busy:
        made.step()
        live: Sequence = [s for group in made.scheduler.by_id.values() for s in group]
        made.scheduler.pool.check_integrity([s.table for s in live])


@pytest.mark.parametrize("probs", [False, True])
def test_a_draft_ends_at_a_token_that_only_the_draft_model_has(target, probs: bool) -> None:
    """What its tokens were drawn from is scaled to the tokens that both have."""
    layers = allocate_kv(target.spec, target.ops, engine(target).scheduler.limits, "f16")
    asked = [
        DraftRequest(i, [7, 8, 9], [i], 3, DraftSampling(seed=i, temperature=1.0)) for i in range(8)
    ]
    whole, cut = (
        ModelDrafter(target, layers, LateTokens(8, 16), vocab=vocab, probs=probs).propose(asked)
        for vocab in (None, 200)
    )
    lengths = []
    for full, found in zip(whole, cut, strict=True):
        count = next((i for i, token in enumerate(full.tokens) if token >= 200), 3)
        lengths.append(count)
        assert found.tokens == full.tokens[:count]
        assert (found.probs is not None) == (probs and count > 0)
        if found.probs is not None and full.probs is not None:
            part = full.probs[:count, :200]
            assert np.allclose(found.probs, part / part.sum(axis=1, keepdims=True))
    assert min(lengths) < max(lengths)


def test_drafts_end_with_the_limit_and_with_a_stop_token(target) -> None:
    layers = allocate_kv(target.spec, target.ops, engine(target).scheduler.limits, "f16")
    drafter = ModelDrafter(target, layers, LateTokens(8, layers[0].block_size))
    asked = [DraftRequest(i, [7, 8, 9], [i], limit) for i, limit in enumerate((0, 1, 3))]
    found = drafter.propose(asked)
    assert [len(one.tokens) for one in found] == [0, 1, 3]
    assert found[2].tokens[:1] == found[1].tokens
