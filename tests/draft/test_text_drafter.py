"""A draft model through text reads a long text before it drafts: a part at each call, and no more
than a few pieces with the draft itself.
"""

from typing import Any

import numpy as np
import pytest
from random_models import engine, random_model

from flyweight.draft.drafter import Draft, DraftRequest, LateDrafter
from flyweight.draft.textmodel import TextDrafter
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import allocate_kv
from flyweight.models.decoder import Decoder
from flyweight.ops.cpu import CpuOps


class NumberWords:
    """Token i is the word i, after a space."""

    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return b" %d" % token


class NumberSpeller:
    """Spells each token as itself."""

    source = NumberWords()

    def spell(self, token: int) -> tuple[int, ...]:
        return (token,)

    def encode(self, raw: bytes) -> list[int]:
        return [int(word) for word in raw.split()]


def make_drafter(model: Decoder, budget: int) -> TextDrafter:
    limits = engine(model, blocks=20).scheduler.limits
    layers = allocate_kv(model.spec, model.ops, limits, "f16")
    spellers: Any = (NumberSpeller(), NumberSpeller())
    return TextDrafter(model, layers, BlockPool(20, limits.block_size), spellers, budget)


def test_a_long_text_is_read_before_its_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    compute = TextDrafter._compute

    def count(self: TextDrafter, chosen: Any, sampling: Any = None) -> Any:
        sizes.append(sum(len(pieces) for _, pieces in chosen))
        return compute(self, chosen, sampling)

    monkeypatch.setattr(TextDrafter, "_compute", count)
    model = random_model(CpuOps(1), "q8_0")
    text = np.random.default_rng(1).integers(0, 331, 100).tolist()
    long, short = (DraftRequest(name, text[:n], (), 3) for name, n in (("a", 100), ("b", 10)))
    whole = make_drafter(model, 2048)
    whole.catch_up([long])
    expected = [*whole.propose([long]), *whole.propose([short])]
    assert [len(draft.tokens) for draft in expected] == [3, 3]
    drafter = make_drafter(model, 64)
    assert isinstance(drafter, LateDrafter)
    sizes.clear()
    assert drafter.propose([long]) == [Draft(())] and not sizes
    for size in (64, 35):
        drafter.catch_up([long, short])
        assert sizes == [size]
        sizes.clear()
    drafter.catch_up([long, short])
    assert not sizes
    assert drafter.propose([long, short]) == expected
    assert sizes[0] == 1 + 10
