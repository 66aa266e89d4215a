"""Where per-channel scales of a matrix's input can go: the norm or the matrix before it.

A quantiser may multiply column j of a matrix by s[j] if what makes its input is divided by s[j]
(Lin et al., 2023; Xiao et al., 2023).  Invariant: a fold changes no output of the model but by
rounding; a place where that does not hold, such as a norm whose output is also the residual, is
not among the folds found.  Knows slots and published tensors, and no method.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from flyweight.spec import LayerSpec, ModelSpec, SlotPlan, Source, WeightPlan
from flyweight.wire import F32, I64

LINEAR_GATES = ("silu", "gelu", "gelu_tanh")  # f(gate) * up, which is linear in up
LINEAR_ACTS = ("relu",)  # f(x / s) = f(x) / s for s > 0


@dataclass(frozen=True, slots=True)
class Fold:
    """Slots that share an input of `width` channels, the `readers`, and the slots that absorb its
    scales: a norm with its biases, or rows of one linear slot with their biases.

    Channel j belongs to element or row `start` + (j // (head * repeat)) * head + j % head: with
    grouped queries, `repeat` query heads read the value rows of one KV head.
    """

    readers: tuple[str, ...]
    into: tuple[str, ...]
    width: int
    head: int
    start: int = 0
    repeat: int = 1

    def list_rows(self) -> I64:
        """[width]: the row that makes each channel."""
        channel = np.arange(self.width, dtype=np.int64)
        found: I64 = channel // (self.head * self.repeat) * self.head + channel % self.head
        return found + self.start

    def tie(self, scales: F32) -> F32:
        """Scales [width] with one value, the geometric mean, for all channels of a row."""
        if self.repeat == 1:
            return scales
        heads = np.log(scales).reshape(-1, self.repeat, self.head)
        tied = np.repeat(heads.mean(axis=1, keepdims=True), self.repeat, axis=1)
        found: F32 = np.exp(tied).reshape(-1).astype(np.float32)
        return found


@dataclass(frozen=True, slots=True)
class TensorEdit:
    """What a fold does to a published tensor: index i along `axis` is multiplied by the scale of
    channel `channels[i]`, or divided by it; not at all where that is -1.  `plus` is what the model
    adds to the tensor (Gemma's norms).
    """

    tensor: str
    axis: int
    channels: I64
    multiply: bool
    plus: float = 0.0

    def apply(self, x: F32, scales: F32) -> F32:
        """The tensor, float32 of its published shape, with the scales [K] in it."""
        factors = np.ones(len(self.channels), np.float32)
        held = self.channels >= 0
        factors[held] = scales[self.channels[held]]
        if not self.multiply:
            factors = np.reciprocal(factors)
        shape = [1] * x.ndim
        shape[self.axis] = len(factors)
        changed = (x + np.float32(self.plus)) * factors.reshape(shape) - np.float32(self.plus)
        keep = np.reshape(~held, shape)
        return np.where(keep, x, changed).astype(np.float32)


def find_folds(spec: ModelSpec, i: int, plan: WeightPlan) -> list[Fold]:
    """The folds of layer i, in the order in which its matrices run.  A linear slot that reads none
    of them has no place for scales: one after a norm that is not its own, an activation that is not
    linear, a mixture of experts, or latent attention.
    """
    slots = {slot.name: slot for slot in plan.slots if slot.name.startswith(f"layers.{i}.")}
    layer, at = spec.layers[i], f"layers.{i}."
    found = [] if spec.norm.post else [*_fold_norms(spec, layer, at, slots)]
    found += [*_fold_values(layer, at, slots), *_fold_inner(layer, at)]
    order = [f"{at}{name}" for name in ("qkv", "out", "up", "down")]
    found.sort(key=lambda fold: order.index(fold.readers[0]))
    return [fold for fold in found if _is_whole(fold, slots, plan)]


def _fold_norms(
    spec: ModelSpec, layer: LayerSpec, at: str, slots: Mapping[str, SlotPlan]
) -> Iterator[Fold]:
    attention: tuple[str, ...] = () if layer.latent else (f"{at}qkv",)
    mlp: tuple[str, ...] = () if layer.moe else (f"{at}up",)
    first, second = f"{at}attn_norm", f"{at}mlp_norm"
    if second in slots:
        pairs = [(first, attention), (second, mlp)]
    elif spec.parallel:  # both blocks read the first norm
        pairs = [(first, attention + mlp if attention and mlp else ())]
    else:
        pairs = [(first, attention)]
    for norm, readers in pairs:
        if norm in slots and readers:
            into = tuple(name for name in (norm, f"{norm}_bias") if name in slots)
            yield Fold(readers, into, spec.hidden, spec.hidden)


def _fold_values(layer: LayerSpec, at: str, slots: Mapping[str, SlotPlan]) -> Iterator[Fold]:
    """Value rows make the input of `out`: a softmax only mixes positions."""
    if layer.latent or layer.kv.v_in_k or f"{at}qkv" not in slots:
        return
    kv, width = layer.kv, layer.heads * layer.kv.v_dim
    start = layer.heads * layer.head + kv.heads * kv.k_dim
    if slots[f"{at}qkv"].shape[0] == start + kv.heads * kv.v_dim:
        repeat = layer.heads // kv.heads
        yield Fold((f"{at}out",), (f"{at}qkv",), width, kv.v_dim, start, repeat)


def _fold_inner(layer: LayerSpec, at: str) -> Iterator[Fold]:
    if layer.moe or layer.act not in (LINEAR_GATES if layer.gated else LINEAR_ACTS):
        return
    start = layer.inner if layer.gated else 0  # the gate's rows are the first
    yield Fold((f"{at}down",), (f"{at}up",), layer.inner, layer.inner, start)


def _is_whole(fold: Fold, slots: Mapping[str, SlotPlan], plan: WeightPlan) -> bool:
    """Whether every tensor is a plain vector or matrix that no other slot shares."""
    own = {*fold.readers, *fold.into}
    tensors = {s.tensor for name in own for s in slots[name].sources}
    others = {s.tensor for slot in plan.slots if slot.name not in own for s in slot.sources}
    for name in own:
        for source in slots[name].sources:
            if len(source.shape) > 2 or (source.transposed and source.order):
                return False
    return not tensors & others


def list_edits(plan: WeightPlan, fold: Fold) -> list[TensorEdit]:
    """What a fold does to each published tensor, biases included; apply all of them or none."""
    slots = {slot.name: slot for slot in plan.slots}
    edits: dict[str, TensorEdit] = {}
    channels = np.arange(fold.width, dtype=np.int64)
    for reader in fold.readers:
        for source in slots[reader].sources:
            axis = 0 if source.transposed else 1
            edits[source.tensor] = TensorEdit(source.tensor, axis, channels, True)
    for name in fold.into:
        for edit in _divide_rows(slots[name], fold):
            known = edits.get(edit.tensor)
            if known is not None:  # another part of one fused tensor
                both = np.maximum(known.channels, edit.channels)
                edit = TensorEdit(edit.tensor, edit.axis, both, False, edit.plus)
            edits[edit.tensor] = edit
    return list(edits.values())


def _divide_rows(slot: SlotPlan, fold: Fold) -> Iterator[TensorEdit]:
    """The edits of the tensors whose rows, or elements, make the channels of a fold."""
    owner = np.full(slot.shape[0], -1, np.int64)
    owner[fold.list_rows()] = np.arange(fold.width)
    start = 0
    for source in slot.sources:
        mine = owner[start : start + source.out]
        start += source.out
        if (mine < 0).all():
            continue
        place, size = _place_rows(source)
        channels = np.full(size, -1, np.int64)
        channels[place] = mine
        axis = 1 if source.transposed else 0
        yield TensorEdit(source.tensor, axis, channels, False, slot.plus)
        if source.bias:
            yield TensorEdit(source.bias, 0, channels, False)


def _place_rows(source: Source) -> tuple[I64, int]:
    """Where each row of a source lies in its tensor, and how many rows the tensor has."""
    if source.transposed:
        return np.arange(source.out, dtype=np.int64), source.shape[-1]
    rows = np.arange(source.rows, dtype=np.int64)
    if source.order:
        size = len(source.order)
        rows = rows // size * size + np.array(source.order, np.int64)[rows % size]
    return source.start + rows, source.shape[0]
