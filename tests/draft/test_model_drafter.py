"""A model that drafts for itself proposes what it draws, token for token, wherever its K/V has
been; another model's drafts change no token.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from random_models import Answer, answers, engine, random_model, request

from flyweight.draft.ahead import AheadTokens
from flyweight.draft.drafter import DraftRequest
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
    layers = allocate_kv(draft.spec, draft.ops, made.scheduler.limits, kv)
    made.runner.draft_kv = layers
    made.drafts.__init__(ModelDrafter(draft, layers), made.scheduler, made.metrics)
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
def test_steps_without_drafts_leave_no_gap(target, truth, mix, monkeypatch) -> None:
    """What was left out of a step, because the draft might be wrong, is computed in the next."""
    late = []
    take = AheadTokens.take_late

    def count(self: AheadTokens) -> Batch | None:
        found = take(self)
        late.append(0 if found is None else len(found.tokens))
        return found

    monkeypatch.setattr(AheadTokens, "take_late", count)
    made = drafting(target, target, **MIXES[mix])
    made.drafts.limits = ChangingDepths()
    assert answers(made, requests()) == truth
    assert answers(made, requests()) == truth
    assert made.metrics.accepted == made.metrics.proposed > 100
    assert sum(late) > 10


def test_tokens_are_computed_once(target, monkeypatch) -> None:
    """By the draft model: the prompt in a step, what follows while it drafts; only the step that
    ends the sequence is computed again, as its blocks are let go before the drafter sees it.
    """
    counts = []
    compute = Decoder.compute_hidden

    def count(self: Decoder, batch: Batch, kv: Sequence, rows: object, *more: object) -> object:
        if kv is layers:
            counts.append(len(batch.tokens))
        return compute(self, batch, kv, rows, *more)

    made = drafting(target, target)
    layers = made.drafts.calls.drafter.layers
    monkeypatch.setattr(Decoder, "compute_hidden", count)
    answers(made, [request("a", range(30), 26, temperature=0.9, seed=1)])
    assert made.metrics.steps == 6  # 1 + 5 * 5 tokens
    assert counts[:6] == [30, 1, 1, 1, 1, 2] and counts[-1] == 5
    assert sum(counts) == 30 + 4 + 4 * 5 + 5
    assert len(counts) == 1 + 5 * 4 + 1


def _lose_late_tokens(self: AheadTokens) -> None:
    self.late.clear()


def _observe_nothing(self: ModelDrafter, batch: Batch, taps: object) -> None: ...


def _draw_at_the_wrong_place(self: DraftRow) -> object:
    found = KEPT(self)
    return found._replace(position=found.position - 1)


KEPT = DraftRow.make_logits_row


@pytest.mark.parametrize(
    "owner, name, bug",
    [
        (ModelDrafter, "observe", _observe_nothing),
        (DraftRow, "make_logits_row", _draw_at_the_wrong_place),
        (AheadTokens, "take_late", _lose_late_tokens),
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


def test_drafts_end_with_the_limit_and_with_a_stop_token(target) -> None:
    layers = allocate_kv(target.spec, target.ops, engine(target).scheduler.limits, "f16")
    drafter = ModelDrafter(target, layers)
    asked = [DraftRequest(i, [7, 8, 9], [i], limit) for i, limit in enumerate((0, 1, 3))]
    found = drafter.propose(asked)
    assert [len(one.tokens) for one in found] == [0, 1, 3]
    assert found[2].tokens[:1] == found[1].tokens
