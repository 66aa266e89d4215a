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
from flyweight.ops.grouped import count_block
from flyweight.spec import LayerSpec, ModelSpec, SlotPlan, Source, WeightPlan

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
        for name, unit, total in _list_columns(f"layers.{i}.", layer, by_expert):
            problem = _find_cut_problem([kind for _, kind in kinds[name]], unit, total, size)
            if problem:
                return problem
    return ""


def _list_columns(at: str, layer: LayerSpec, by_expert: bool) -> Iterable[tuple[str, int, int]]:
    """Matrices that are split along K: slot, elements that stay together, and elements in all."""
    wide = layer.latent.value if layer.latent else layer.kv.v_dim
    yield at + "out", wide, layer.heads * wide
    if layer.moe is None:
        yield at + "down", 1, layer.inner
        return
    for expert in range(0 if by_expert else layer.moe.route.experts):
        yield f"{at}down.{expert}", 1, layer.moe.inner
    if layer.moe.shared:
        yield at + "shared_down", 1, layer.moe.shared


def _find_cut_problem(kinds: Sequence[str], unit: int, total: int, size: int) -> str:
    """Why a matrix cannot be cut along K."""
    if any("_order" in kind for kind in kinds):
        return "the columns of a matrix are in an order of their own (desc_act)"
    block = max(map(count_block, kinds))
    if unit > 1 and total // size % block:
        return f"the heads of a rank are {total // size} columns, not whole blocks of {block}"
    if total // block < size:
        return f"{total} columns have {total // block} blocks of {block}"
    return ""


@dataclass(frozen=True, slots=True)
class ModelShard:
    """A model's spec and plan, cut for one rank."""

    spec: ModelSpec
    plan: WeightPlan


def cut_model(spec: ModelSpec, plan: WeightPlan, kinds: Kinds, shard: Shard) -> ModelShard:
    """The part of one rank.  Raises `ConfigError` where the model cannot be split so."""
    check_size(spec, kinds, shard.size, shard.by_expert)
    blocks = _find_blocks(spec, kinds, shard.by_expert)
    cutters = [_Cutter(layer, shard, blocks[i]) for i, layer in enumerate(spec.layers)]
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


def _find_blocks(spec: ModelSpec, kinds: Kinds, by_expert: bool) -> list[int]:
    """For each layer, the elements of its MLPs' inner width that stay together."""
    found = []
    for i, layer in enumerate(spec.layers):
        columns = _list_columns(f"layers.{i}.", layer, by_expert)
        own = [kind for name, unit, _ in columns if unit == 1 for _, kind in kinds[name]]
        found.append(max(map(count_block, own), default=1))
    return found


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts the slots of one layer; `block` elements of an MLP's inner width stay together."""

    layer: LayerSpec
    shard: Shard
    block: int

    def cut_layer(self) -> LayerSpec:
        layer, shard = self.layer, self.shard
        kv = replace(layer.kv, heads=len(shard.take_heads(layer.kv.heads)))
        moe = layer.moe
        if moe is not None:
            moe = replace(moe, shared=len(shard.take(moe.shared, self.block)))
            if shard.by_expert:
                held = shard.take(moe.route.experts)
                moe = replace(moe, held=(held.start, len(held)))
            else:
                moe = replace(moe, inner=len(shard.take(moe.inner, self.block)))
        inner = len(shard.take(layer.inner, self.block))
        return replace(layer, heads=len(shard.take(layer.heads)), kv=kv, inner=inner, moe=moe)

    def cut(self, slot: SlotPlan, part: str) -> SlotPlan | None:
        """A rank's part of a slot, None where it has none of it."""
        name, _, number = part.partition(".")
        if name in ("k_up", "v_up"):
            return _choose(slot, part, self.shard.take(self.layer.heads))
        if number and self.shard.by_expert and self.layer.moe is not None:
            return _choose(slot, part, self.shard.take(self.layer.moe.route.experts))
        cutters: Mapping[str, Callable[[SlotPlan], SlotPlan]] = {
            "qkv": self._cut_qkv,
            "q": self._cut_queries,
            "out": self._cut_out,
            "up": self._cut_up,
            "down": self._cut_down,
            "shared_up": self._cut_up,
            "shared_down": self._cut_down,
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

    def _cut_up(self, slot: SlotPlan) -> SlotPlan:
        halves = 2 if self.layer.gated else 1
        inner = slot.shape[0] // halves
        own = self.shard.take(inner, self.block)
        return take_rows(slot, [_scale(own, 1, half * inner) for half in range(halves)])

    def _cut_down(self, slot: SlotPlan) -> SlotPlan:
        return self._cut_columns(slot, self.shard.take(slot.shape[1], self.block))

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


def take_rows(slot: SlotPlan, wanted: Sequence[range]) -> SlotPlan:
    """A slot with some of its rows, in the given order."""
    shape = (sum(map(len, wanted)), *slot.shape[1:])
    first = slot.sources[0]
    if len(slot.sources) == 1 and len(first.order) == first.out:
        return replace(slot, shape=shape, sources=(_take_ordered_rows(first, wanted),))
    sources: list[Source] = []
    for rows in wanted:
        at = 0
        for source in slot.sources:
            own = range(max(rows.start - at, 0), min(rows.stop - at, source.out))
            at += source.out
            if own:
                sources.append(_take_source_rows(source, own))
    return replace(slot, shape=shape, sources=tuple(sources))


def _take_source_rows(source: Source, rows: range) -> Source:
    """Neighbouring rows, which are whole heads where heads' rows have an order."""
    turned = len(source.order) or 1
    assert rows.start % turned == len(rows) % turned == 0, f"{source.tensor}: heads are cut"
    if source.transposed:
        return replace(source, outputs=(rows.start, len(rows)))
    return replace(source, start=source.start + rows.start, rows=len(rows))


def _take_ordered_rows(source: Source, wanted: Sequence[range]) -> Source:
    """Rows of a source whose rows are all in an order of their own (q, k and v of each head
    together, or gate and up in turns); in the file they are neighbours.
    """
    places = [source.order[row] for rows in wanted for row in rows]
    first = min(places)
    assert sorted(places) == [*range(first, first + len(places))], f"{source.tensor}: no neighbours"
    cut = _take_source_rows(replace(source, order=()), range(first, first + len(places)))
    return replace(cut, order=tuple(place - first for place in places))
