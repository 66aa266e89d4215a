"""LoRA adapters (Hu et al., 2021) put into a model's slots: which tensors of an adapter go with
which matrix of the decoder.

Invariant: every tensor of an adapter is used, or it is refused by name.  A slot of several sources
(q, k, v) takes their low-rank pairs as one: the first matrices stacked, the second ones block by
block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.ops.base import Ops
from flyweight.ops.operands import LowRank
from flyweight.spec import SlotPlan, Source, WeightPlan
from flyweight.validation.untrusted import shown
from flyweight.weights.adapter import Adapter, LoraPair
from flyweight.wire import F32

ADAPTED = {  # slots of a layer that the decoder runs as `Linear`; single experts' are not
    "qkv", "out", "up", "down", "shared_up", "shared_down", "q", "q_down", "kv_down",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """One source's pair in its slot: its rows begin at `first`."""

    pair: LoraPair
    source: Source
    first: int


def place_adapter(adapter: Adapter, plan: WeightPlan) -> dict[str, list[PlacedAdapter]]:
    """Slot name to the pairs in it.  `plan` is the model's as published.  Raises `CheckpointError`
    for pairs that fit nowhere.
    """
    found: dict[str, list[PlacedAdapter]] = {}
    for slot in plan.slots:
        placed = list(_place_in_slot(adapter, slot))
        if placed:
            found[slot.name] = placed
    used = {placed.pair.module for pairs in found.values() for placed in pairs}
    lost = sorted(set(adapter.pairs) - used)
    if lost:
        raise CheckpointError(
            f"{adapter.path}: {len(lost)} modules cannot be adapted in this model, "
            f"the first {shown(lost[0])}; allowed: its attention and MLP matrices"
        )
    return found


def pack_adapter(adapter: Adapter, plan: WeightPlan, ops: Ops) -> dict[str, LowRank]:
    """Slot name to its matrices, packed."""
    shapes = {slot.name: slot.shape for slot in plan.slots}
    return {
        name: _pack_pair(placed, shapes[name], ops)
        for name, placed in place_adapter(adapter, plan).items()
    }


def list_kinds(adapter: Adapter, plan: WeightPlan) -> list[tuple[tuple[int, ...], str]]:
    """(shape, kind) of every matrix `pack_adapter` packs, for the memory plan."""
    shapes = {slot.name: slot.shape for slot in plan.slots}
    found: list[tuple[tuple[int, ...], str]] = []
    for name, placed in place_adapter(adapter, plan).items():
        rank = sum(p.pair.rank for p in placed)
        found += [((rank, shapes[name][1]), "f32"), ((shapes[name][0], rank), "f32")]
    return found


def _place_in_slot(adapter: Adapter, slot: SlotPlan) -> Iterator[PlacedAdapter]:
    first, adapted = 0, slot.name.split(".", 2)[-1] in ADAPTED
    for source in slot.sources:
        pair = adapter.pairs.get(source.tensor.removesuffix(".weight"))
        if pair is not None and adapted:
            _check(adapter, pair, source, slot)
            yield PlacedAdapter(pair, source, first)
        first += source.out


def _check(adapter: Adapter, pair: LoraPair, source: Source, slot: SlotPlan) -> None:
    whole = source.start == 0 and len(source.shape) == 2
    wanted = (source.out, slot.shape[1])
    if not whole or pair.shape != wanted:
        raise CheckpointError(
            f"{adapter.path}: {shown(pair.module)} is adapted as {list(pair.shape)}, "
            f"the model's is {list(wanted)}"
        )


def _pack_pair(placed: list[PlacedAdapter], shape: tuple[int, ...], ops: Ops) -> LowRank:
    rank = sum(p.pair.rank for p in placed)
    down = np.concatenate([p.pair.read_down() for p in placed])  # [rank, K]
    up: F32 = np.zeros((shape[0], rank), np.float32)
    column = 0
    for p in placed:
        rows = p.pair.read_up()
        if p.source.order:
            first = np.arange(0, len(rows), len(p.source.order))[:, None]
            rows = rows[(first + np.array(p.source.order)).reshape(-1)]
        up[p.first : p.first + len(rows), column : column + p.pair.rank] = rows
        column += p.pair.rank
    return LowRank(ops.pack((rank, shape[1]), [down]), ops.pack((shape[0], rank), [up]))
