"""A rank's part of a model under tensor parallelism, as data: Megatron-LM's splits (Shoeybi et al.,
2019).

The rows of q, k and v, of gate and up, and of each expert's are split over ranks
(column-parallel), the columns of the output and down projections (row-parallel), and the rows of
the embedding and the head (vocabulary-parallel).  All else is on every rank.  A matrix that is
split along K is cut between whole quantisation blocks, and its bias is added by rank 0 alone.

Invariant: the parts of all ranks together are the model, each element once; K/V heads are on
several ranks where there are fewer of them than ranks.  Reads no tensor and knows no processes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flyweight.errors import ConfigError
from flyweight.models.slot_rows import take_rows
from flyweight.ops.grouped import count_block
from flyweight.spec import LayerSpec, ModelSpec, SlotPlan, WeightPlan

OPTION = "tensor_parallel_size"
NAMED = 8  # valid sizes in a refusal
MOST_RANKS = 64
Kinds = Mapping[str, Sequence[tuple[tuple[int, ...], str]]]  # of `weights.load.list_slot_kinds`


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `size`.  With `by_expert`, ranks have whole experts, in place of a part of
    each.
    """

    rank: int
    size: int
    by_expert: bool = False

    def take(self, total: int, unit: int = 1) -> range:
        """Its part of `total` elements, in whole units."""
        return split_evenly(total, self.size, unit)[self.rank]

    def take_heads(self, heads: int) -> range:
        """Its K/V heads; several ranks have the same one where there are fewer than ranks."""
        if heads >= self.size:
            return self.take(heads)
        first = self.rank * heads // self.size
        return range(first, first + 1)


def split_evenly(total: int, parts: int, unit: int = 1) -> list[range]:
    """`total` elements in consecutive parts of whole units, the first ones a unit longer where
    that does not come out even.
    """
    assert total % unit == 0, f"{total} elements are no whole units of {unit}"
    units = total // unit
    counts = [units // parts + (i < units % parts) for i in range(parts)]
    ends = [sum(counts[: i + 1]) * unit for i in range(parts)]
    return [range(end - count * unit, end) for end, count in zip(ends, counts, strict=True)]


def check_size(spec: ModelSpec, kinds: Kinds, size: int, by_expert: bool = False) -> None:
    """Raises `ConfigError` where a model cannot be split over so many ranks."""
    problem = _find_problem(spec, kinds, size, by_expert)
    if not problem:
        return
    most = min(MOST_RANKS, max(layer.heads for layer in spec.layers))
    valid = [n for n in range(1, most + 1) if not _find_problem(spec, kinds, n, by_expert)]
    shown = ", ".join(map(str, valid[:NAMED])) + (", ..." if len(valid) > NAMED else "")
    raise ConfigError(f": {problem}", OPTION, value=size, allowed=shown)


def _find_problem(spec: ModelSpec, kinds: Kinds, size: int, by_expert: bool) -> str:
    """Why a model cannot be split over so many ranks; empty if it can."""
    if size == 1:
        return ""
    for i, layer in enumerate(spec.layers):
        heads, stored = layer.heads, layer.kv.heads
        if heads % size:
            return f"the {heads} query heads of a layer do not divide by it"
        if stored % size and size % stored:
            return f"the {stored} K/V heads of a layer neither divide by it nor it by them"
        if layer.qk_norm == "whole" and stored % size:
            return f"keys are normed over all {stored} K/V heads, which do not divide by it"
        if by_expert and layer.moe is not None and layer.moe.route.experts < size:
            return f"a layer has {layer.moe.route.experts} experts"
        for cut in _list_cuts(f"layers.{i}.", layer, by_expert):
            problem = cut.find_problem(kinds, size)
            if problem:
                return problem
    return ""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Matrices that are split along K at the same places: `total` elements, of which `unit` stay
    together.
    """

    slots: Sequence[str]
    total: int
    unit: int = 1

    def find_problem(self, kinds: Kinds, size: int) -> str:
        """Why they cannot be split over so many ranks."""
        if any("_order" in kind for slot in self.slots for _, kind in kinds[slot]):
            return "the columns of a matrix are in an order of their own (desc_act)"
        total, block = self.total, self.find_block(kinds)
        if self.unit > 1 and total // size % block:
            return f"the heads of a rank are {total // size} columns, not whole blocks of {block}"
        if total // block < size:
            return f"{total} columns have {total // block} blocks of {block}"
        return ""

    def find_block(self, kinds: Kinds) -> int:
        """Elements that are quantised together, in any of them."""
        return max(count_block(kind) for slot in self.slots for _, kind in kinds[slot])


def _list_cuts(at: str, layer: LayerSpec, by_expert: bool) -> Iterable[_Cut]:
    """What is split along K in a layer: the output projection, the MLP or the experts, and the
    shared expert.
    """
    wide = layer.latent.value if layer.latent else layer.kv.v_dim
    yield _Cut([at + "out"], layer.heads * wide, wide)
    if layer.moe is None:
        yield _Cut([at + "down"], layer.inner)
        return
    if not by_expert:
        yield _Cut([f"{at}down.{e}" for e in range(layer.moe.route.experts)], layer.moe.inner)
    if layer.moe.shared:
        yield _Cut([at + "shared_down"], layer.moe.shared)


@dataclass(frozen=True, slots=True)
class ModelShard:
    """A model's spec and plan, cut for one rank."""

    spec: ModelSpec
    plan: WeightPlan


def cut_model(spec: ModelSpec, plan: WeightPlan, kinds: Kinds, shard: Shard) -> ModelShard:
    """The part of one rank.  Raises `ConfigError` where the model cannot be split so."""
    check_size(spec, kinds, shard.size, shard.by_expert)
    cutters = [
        _Cutter(layer, shard, _find_blocks(f"layers.{i}.", layer, kinds, shard.by_expert))
        for i, layer in enumerate(spec.layers)
    ]
    slots = []
    for slot in plan.slots:
        if slot.name in ("embed", "head"):
            slots.append(take_rows(slot, [shard.take(spec.vocab)]))
        elif slot.name.startswith("layers."):
            _, i, part = slot.name.split(".", 2)
            found = cutters[int(i)].cut(slot, part)
            slots += [] if found is None else [found]
        else:
            slots.append(slot)
    layers = tuple(cutter.cut_layer() for cutter in cutters)
    ignored = list_ignored(plan, slots)
    return ModelShard(replace(spec, layers=layers), WeightPlan(tuple(slots), ignored))


def list_ignored(plan: WeightPlan, slots: Sequence[SlotPlan]) -> tuple[str, ...]:
    """Patterns of the tensors that a plan with only these of its slots does not use."""
    used = {name for slot in slots for s in slot.sources for name in (s.tensor, s.bias)}
    every = (name for slot in plan.slots for s in slot.sources for name in (s.tensor, s.bias))
    unused = sorted({name for name in every if name} - used)
    return (*plan.ignored, *map(_escape, unused))


def _escape(name: str) -> str:
    """A tensor's name as a pattern that fits it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _find_blocks(at: str, layer: LayerSpec, kinds: Kinds, by_expert: bool) -> Mapping[str, int]:
    """Elements of an inner width that stay together, by the slot of the way back."""
    cuts = _list_cuts(at, layer, by_expert)
    return {
        slot.removeprefix(at): cut.find_block(kinds)
        for cut in cuts if cut.unit == 1 for slot in cut.slots
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts the slots of one layer; `blocks` are `_find_blocks`'s."""

    layer: LayerSpec
    shard: Shard
    blocks: Mapping[str, int]

    def cut_layer(self) -> LayerSpec:
        layer, shard = self.layer, self.shard
        kv = replace(layer.kv, heads=len(shard.take_heads(layer.kv.heads)))
        moe = layer.moe
        if moe is not None:
            shared = shard.take(moe.shared, self.blocks.get("shared_down", 1))
            moe = replace(moe, shared=len(shared))
            if shard.by_expert:
                held = shard.take(moe.route.experts)
                moe = replace(moe, held=(held.start, len(held)))
            else:
                moe = replace(moe, inner=len(shard.take(moe.inner, self.blocks["down.0"])))
        inner = len(shard.take(layer.inner, self.blocks.get("down", 1)))
        return replace(layer, heads=len(shard.take(layer.heads)), kv=kv, inner=inner, moe=moe)

    def cut(self, slot: SlotPlan, part: str) -> SlotPlan | None:
        """A rank's part of a slot, None where it has none of it."""
        name, _, number = part.partition(".")
        if name in ("k_up", "v_up"):
            return _choose(slot, part, self.shard.take(self.layer.heads))
        if number and self.shard.by_expert and self.layer.moe is not None:
            return _choose(slot, part, self.shard.take(self.layer.moe.route.experts))
        block = self.blocks.get(part.replace("up", "down"), 1)
        cutters: Mapping[str, Callable[[SlotPlan], SlotPlan]] = {
            "qkv": self._cut_qkv,
            "q": self._cut_queries,
            "out": self._cut_out,
            "up": lambda up: self._cut_up(up, block),
            "down": lambda down: self._cut_down(down, block),
            "shared_up": lambda up: self._cut_up(up, block),
            "shared_down": lambda down: self._cut_down(down, block),
            "sinks": lambda sinks: take_rows(sinks, [self.shard.take(self.layer.heads)]),
            "q_norm": lambda norm: self._cut_norm(norm, self.shard.take(self.layer.heads)),
            "k_norm": lambda norm: self._cut_norm(norm, self._take_stored()),
        }
        return cutters[name](slot) if name in cutters else slot

    def _take_stored(self) -> range:
        return self.shard.take_heads(self.layer.kv.heads)

    def _cut_qkv(self, slot: SlotPlan) -> SlotPlan:
        layer, stored = self.layer, self._take_stored()
        k, v = layer.kv.k_dim, layer.kv.v_dim
        first = layer.heads * layer.head
        queries = _scale(self.shard.take(layer.heads), layer.head)
        keys = _scale(stored, k, first)
        values = _scale(stored, v, first + layer.kv.heads * k)
        return take_rows(slot, [queries, keys, values])

    def _cut_queries(self, slot: SlotPlan) -> SlotPlan:
        heads = self.layer.heads
        return take_rows(slot, [_scale(self.shard.take(heads), slot.shape[0] // heads)])

    def _cut_out(self, slot: SlotPlan) -> SlotPlan:
        heads = self.layer.heads
        return self._cut_columns(slot, _scale(self.shard.take(heads), slot.shape[1] // heads))

    def _cut_up(self, slot: SlotPlan, block: int) -> SlotPlan:
        halves = 2 if self.layer.gated else 1
        inner = slot.shape[0] // halves
        own = self.shard.take(inner, block)
        return take_rows(slot, [_scale(own, 1, half * inner) for half in range(halves)])

    def _cut_down(self, slot: SlotPlan, block: int) -> SlotPlan:
        return self._cut_columns(slot, self.shard.take(slot.shape[1], block))

    def _cut_columns(self, slot: SlotPlan, own: range) -> SlotPlan:
        sources = slot.sources
        if self.shard.rank:
            sources = tuple(replace(source, bias="") for source in sources)
        column = own.start
        if sources[0].transposed:
            sources = tuple(
                replace(source, start=source.start + column, rows=len(own)) for source in sources
            )
            column = 0
        return replace(slot, shape=(slot.shape[0], len(own)), sources=sources, column=column)

    def _cut_norm(self, slot: SlotPlan, heads: range) -> SlotPlan:
        """Weights of each head of its own; those that all heads share stay."""
        if self.layer.qk_norm != "centred":
            return slot
        sources = slot.sources[heads.start : heads.stop]  # one a head, or one of all heads
        if len(slot.sources) == 1:
            (whole,) = slot.sources
            sources = (replace(whole, start=whole.start + heads.start, rows=len(heads)),)
        return replace(slot, shape=(len(heads) * self.layer.head,), sources=sources)


def _choose(slot: SlotPlan, part: str, own: range) -> SlotPlan | None:
    """A matrix of one head or expert, "k_up.3", under its number among the rank's own; None where
    it is another's.
    """
    number = part.rpartition(".")[2]
    if int(number) not in own:
        return None
    return replace(slot, name=f"{slot.name.removesuffix(number)}{int(number) - own.start}")


def _scale(heads: range, width: int, first: int = 0) -> range:
    """The rows of some heads of `width` rows each."""
    return range(first + heads.start * width, first + heads.stop * width)
