"""What each matrix of a model costs in quality, by type: the divergence of the model's predictions
with only that matrix quantised, or with that matrix in another type where all are quantised.

Invariant: both models run over the same windows with the same backend; a layer's input is computed
once, and a candidate runs from its own layer on.  The model is in memory as a whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flyweight.describe import ModelDescription
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.ops.base import Ops
from flyweight.ops.grouped import GroupedWeight
from flyweight.quantize.estimate import ROWS, count_scored
from flyweight.quantize.finite import read_finite_matrix
from flyweight.quantize.ggml.encode import BlockEncoder
from flyweight.quantize.layers import LayerRun
from flyweight.quantize.statistics import InputStatistics
from flyweight.quantize.tensors import TensorRows, split_layers
from flyweight.spec import SlotPlan
from flyweight.weights.formats import FORMATS
from flyweight.weights.load import load_slots, read_bias
from flyweight.wire import F32, I32


class SensitivityRun:
    """A model and the windows [W, L] that it is judged on; `rows` are where the tensors of the file
    to be written are, by slot.
    """

    def __init__(
        self,
        found: ModelDescription,
        windows: I32,
        rows: Mapping[str, Sequence[TensorRows]],
        ops: Ops,
    ) -> None:
        self.found, self.windows, self.rows, self.ops = found, windows, rows, ops
        top, self._layers = split_layers(found.plan, len(found.spec.layers))
        self._slots = {slot.name: slot for slot in found.plan.slots}
        self._top = load_slots(found.checkpoint, top, ops)
        self._weights = [load_slots(found.checkpoint, slots, ops) for slots in self._layers]
        self._encoder = BlockEncoder()
        self._run = LayerRun(found.spec, windows)
        self._run.embed(ops, self._top)
        self._inputs: list[F32] = []
        self._base: dict[str, str] = {}
        self.importance: dict[str, F32] = {}
        for i, weights in enumerate(self._weights):
            self._inputs.append(self._run.residual.copy())
            self._observe(i, weights)
            self._run.advance(i, ops, weights)
        step = max(1, windows.size // count_scored(found.spec))
        self._scored = np.arange(step - 1, windows.size, step)
        self._full = [*self._predict(self._top)]

    def apply(self, types: Mapping[str, str]) -> float:
        """Quantises the model: its divergence with all these types at once.  What is measured from
        then on has them too.
        """
        self._base = dict(types)
        for slot in self.rows:
            packed = self._pack(slot, self._round_slot(slot, self._base))
            if slot.startswith("layers."):
                self._weights[_find_layer(slot)][slot] = packed
            else:
                self._top[slot] = packed
        self._run.embed(self.ops, self._top)
        for i, weights in enumerate(self._weights):
            self._inputs[i] = self._run.residual.copy()
            self._run.advance(i, self.ops, weights)
        return self._compare(self._top)

    def measure(self, slot: str, tensor: str, kind: str) -> float:
        """The divergence with this tensor of a slot in this type."""
        packed = self._pack(slot, self._round_slot(slot, self._base | {tensor: kind}))
        if not slot.startswith("layers."):
            top = {**self._top, slot: packed}
            self._run.embed(self.ops, top)
            self._advance_from(0, {})
            return self._compare(top)
        layer = _find_layer(slot)
        self._run.residual = self._inputs[layer].copy()
        self._advance_from(layer, {slot: packed})
        return self._compare(self._top)

    def _advance_from(self, layer: int, changed: Mapping[str, Any]) -> None:
        for i in range(layer, len(self._weights)):
            weights = {**self._weights[i], **(changed if i == layer else {})}
            self._run.advance(i, self.ops, weights)

    def _round_slot(self, slot: str, types: Mapping[str, str]) -> F32:
        """The slot's matrix with its tensors' rows in their types; exact where there is none."""
        rows = read_finite_matrix(self.found.checkpoint, self._slots[slot])
        for piece in self.rows[slot]:
            kind = types.get(piece.tensor)
            if kind is None:
                continue
            own = slice(piece.first, piece.first + piece.rows)
            raw = self._encoder.encode(kind, rows[own], self.importance.get(slot))
            parsed = FORMATS[kind].parse(raw, (piece.rows, rows.shape[1]))
            rows[own] = (
                parsed.dequantize()
                if isinstance(parsed, GroupedWeight)
                else parsed.astype(np.float32)
            )
        return rows

    def _pack(self, slot: str, rows: F32) -> Any:
        plan: SlotPlan = self._slots[slot]
        return self.ops.pack(
            (plan.shape[0], plan.shape[1]), [rows], read_bias(self.found.checkpoint, plan)
        )

    def _observe(self, i: int, weights: Mapping[str, Any]) -> None:
        seen: dict[str, InputStatistics] = {}

        def take(slot: str, x: F32) -> None:
            seen.setdefault(slot, InputStatistics(x.shape[1])).take(x)

        self._run.observe(i, self.ops, weights, take)
        for slot, one in seen.items():
            one.check(slot)
        self.importance |= {slot: one.compute_mean_square() for slot, one in seen.items()}

    def _predict(self, top: Mapping[str, Any]) -> Iterator[F32]:
        """Log-probabilities [R, V] of the scored rows, a few at a time."""
        spec = replace(self.found.spec, layers=())
        head = Decoder(Parts(self.ops, SingleProcess(), spec, top), self.windows.shape[1])
        for first in range(0, len(self._scored), ROWS):
            rows = self._scored[first : first + ROWS]
            logits = head.compute_logits(head.final_norm(self._run.residual[rows]))
            shifted = logits - logits.max(axis=1, keepdims=True)
            yield shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    def _compare(self, top: Mapping[str, Any]) -> float:
        """Mean KL(full || now) of the scored rows."""
        total = 0.0
        for full, now in zip(self._full, self._predict(top), strict=True):
            total += float((np.exp(full) * (full - now)).sum(dtype=np.float64))
        return max(0.0, total / len(self._scored))


def _find_layer(slot: str) -> int:
    return int(slot.split(".")[1])
