"""Where per-channel scales of a matrix's input can go: the norm or the matrix before it.

A quantiser may multiply column j of a matrix by s[j] if what makes its input is divided by s[j]
(Lin et al., 2023; Xiao et al., 2023).  Invariant: a fold changes no output of the model but by
rounding; a place where that does not hold, such as a norm whose output is also the residual, is
not among the folds found.  Knows slots, and neither methods nor files.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np

from flyweight.spec import LayerSpec, ModelSpec, SlotPlan, WeightPlan
from flyweight.wire import F32, I64

LINEAR_GATES = ("silu", "gelu", "gelu_tanh")  # f(gate) * up, which is linear in up
LINEAR_ACTS = ("relu",)  # f(x / s) = f(x) / s for s > 0

Slots = Mapping[str, SlotPlan]


@dataclass(frozen=True, slots=True)
class Fold:
    """Slots that share an input of `width` channels, the `readers`, and what absorbs its scales: a
    norm's weights and biases, or rows of one matrix with their biases.

    Channel j is made by element or row `start` + (j // (head * repeat)) * head + j % head: with
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

    def apply(
        self,
        scales: F32,
        matrices: Mapping[str, F32],
        biases: Mapping[str, F32],
        vectors: MutableMapping[str, F32],
    ) -> None:
        """Puts `scales` [width], which are tied, into the slots' contents: `matrices` [N, K] and
        `biases` [N], both in place, and `vectors`.  Vectors are as the model uses them, with what
        it adds to the stored ones.
        """
        for reader in self.readers:
            matrices[reader][...] *= scales
        rows = self.list_rows()
        factors = np.ones(int(rows.max()) + 1, np.float32)
        factors[rows] = np.reciprocal(scales)
        for name in self.into:
            if name in vectors:
                vectors[name] = vectors[name] * factors
                continue
            matrices[name][: len(factors)] *= factors[:, None]
            if name in biases:
                biases[name][: len(factors)] *= factors


def find_folds(spec: ModelSpec, i: int, plan: WeightPlan) -> list[Fold]:
    """The folds of layer i, in the order in which its matrices run.  A linear slot that reads none
    of them cannot have scales: one after a norm that is not its own, after an activation that
    is not linear, or in latent attention.
    """
    at, layer = f"layers.{i}.", spec.layers[i]
    slots = {slot.name: slot for slot in plan.slots if slot.name.startswith(at)}
    attention = [] if layer.latent else [f"{at}qkv"]
    mlp = _list_mlp_readers(layer, at)
    found: list[Fold | None] = []
    if f"{at}mlp_norm" in slots or not spec.parallel:
        found.append(_fold_norm(spec, f"{at}attn_norm", attention, slots))
        found.append(_fold_values(layer, at))
        found.append(_fold_norm(spec, f"{at}mlp_norm", mlp, slots))
    else:  # both blocks read the first norm
        shared = attention + mlp if attention else []
        found.append(_fold_norm(spec, f"{at}attn_norm", shared, slots))
        found.append(_fold_values(layer, at))
    return [fold for fold in (*found, *_fold_inner(layer, at)) if fold is not None]


def _list_mlp_readers(layer: LayerSpec, at: str) -> list[str]:
    """All matrices that read the input of the MLP, or of the mixture."""
    if layer.moe is None:
        return [f"{at}up"]
    moe = layer.moe
    names = ["router", *(f"up.{e}" for e in range(moe.route.experts))]
    names += ["shared_up"] if moe.shared else []
    names += ["shared_gate"] if moe.shared_gate else []
    return [at + name for name in names]


def _fold_norm(spec: ModelSpec, norm: str, readers: list[str], slots: Slots) -> Fold | None:
    """None where there is no such norm, or where its output is the residual too."""
    if norm not in slots or not readers or spec.norm.post:
        return None
    into = tuple(name for name in (norm, f"{norm}_bias") if name in slots)
    return Fold(tuple(readers), into, spec.hidden, spec.hidden)


def _fold_values(layer: LayerSpec, at: str) -> Fold | None:
    """Value rows make the input of `out`: attention only mixes positions."""
    kv, repeat = layer.kv, layer.heads // layer.kv.heads
    if layer.latent or kv.v_in_k:
        return None
    start = layer.heads * layer.head + kv.heads * kv.k_dim
    return Fold((f"{at}out",), (f"{at}qkv",), layer.heads * kv.v_dim, kv.v_dim, start, repeat)


def _fold_inner(layer: LayerSpec, at: str) -> Iterator[Fold]:
    """Rows of the up projection, which follow the gate's, make the input of `down`."""
    if layer.act not in (LINEAR_GATES if layer.gated else LINEAR_ACTS):
        return
    pairs = [("up", "down", layer.inner)]
    if layer.moe is not None:
        inner = layer.moe.inner
        pairs = [(f"up.{e}", f"down.{e}", inner) for e in range(layer.moe.route.experts)]
        pairs += [("shared_up", "shared_down", layer.moe.shared)] if layer.moe.shared else []
    for up, down, inner in pairs:
        start = inner if layer.gated else 0
        yield Fold((at + down,), (at + up,), inner, inner, start)
