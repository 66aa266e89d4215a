"""Penalties next to drafts: a token that was rejected counts for nothing, and where it does count,
the comparison with answers without drafts fails.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from small_engine import ROOMY, drain, make_engine, make_model, make_prompts

from flyweight.draft.drafter import Draft, DraftRequest
from flyweight.draft.tree import list_path
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.step import Chunk, Produced
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps
from flyweight.sampling import arrays
from flyweight.sampling.arrays import LogitsRow
from flyweight.sampling.options import SequenceOptions
from flyweight.types import Request, SamplingParams
from tree_drafter import TreeDrafter

TOKENS, VOCAB = 24, 40
PENALTIES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.8},
    "last tokens": {"repetition_penalty": 1.4, "repeat_last_n": 6},
}
Answers = dict[tuple[str, int], list[int]]


class ChainDrafter(TreeDrafter):
    """Proposes plain drafts, some of whose tokens are wrong."""

    def _propose(self, ask: DraftRequest) -> Draft:
        right = self.find_right(ask)[: ask.limit]
        wrong = self.rng.choices(self.vocabulary, k=len(right))
        pairs = zip(right, wrong, strict=True)
        return Draft(tuple(a if self.rng.random() < 0.7 else b for a, b in pairs))


DRAFTERS = {"chain": ChainDrafter, "tree": TreeDrafter}


@pytest.fixture(scope="module")
def model() -> Decoder:
    return make_model(CpuOps(1, None, "f32"))


def make_requests(penalty: str) -> list[Request]:
    """Greedy and sampled ones."""
    made = []
    for i, prompt in enumerate(make_prompts(6)):
        options = {"temperature": 0.7 * (i % 2), **PENALTIES[penalty]}
        params = SamplingParams(max_tokens=TOKENS, **options)
        made.append(Request(f"r{i}", tuple(prompt), params, max_tokens=TOKENS, seed=i))
    return made


def compare(model: Decoder, penalty: str, drafter: str) -> tuple[int, EngineMetrics]:
    """How many answers are others than those without drafts, and what was counted."""
    requests = make_requests(penalty)
    wanted: Answers = drain(make_engine(model), requests)
    prompts = {r.id: len(r.tokens) for r in requests}

    def find_right(ask: DraftRequest) -> Sequence[int]:
        id, index = ask.id  # type: ignore[misc]
        return wanted[id, index][len(ask.tokens) - prompts[id] :]

    engine = make_engine(model, ROOMY, DRAFTERS[drafter](find_right, range(VOCAB)))
    found = drain(engine, requests)
    return sum(found[key] != tokens for key, tokens in wanted.items()), engine.metrics


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_no_token_changes(model: Decoder, penalty: str, drafter: str) -> None:
    changed, metrics = compare(model, penalty, drafter)
    assert changed == 0 and 20 < metrics.accepted < metrics.proposed


def keep_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded bug: penalties go on counting draft tokens that were rejected."""
    rejected: dict[SequenceOptions, array[int]] = defaultdict(lambda: array("i"))
    accept, window = Engine._accept, arrays._window

    def remember(self: Engine, chunk: Chunk, *rest: Any) -> Produced:
        out, seq = accept(self, chunk, *rest), chunk.seq
        places = range(len(out.tokens) - 1)
        accepted = places if seq.parents is None else list_path(seq.parents, out.accepted)
        verified = enumerate(seq.draft[: len(chunk.drawn) - 1])
        rejected[seq.options].extend(token for i, token in verified if i not in accepted)
        return out

    def count_all(row: LogitsRow) -> tuple[Sequence[int], int]:
        tokens, callers = window(row)
        return array("i", tokens) + rejected[row.options], callers

    monkeypatch.setattr(Engine, "_accept", remember)
    monkeypatch.setattr(arrays, "_window", count_all)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_for_rejected_tokens_is_caught(
    model: Decoder, penalty: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_rejected(monkeypatch)
    changed, metrics = compare(model, penalty, drafter)
    assert changed > 0 and metrics.proposed > metrics.accepted
