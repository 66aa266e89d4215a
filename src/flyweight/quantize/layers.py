"""Runs a model layer by layer over many windows of tokens, with one layer's weights in memory.

Invariant: every window is a sequence of its own from position 0; `residual` [T, H] holds what all
windows have after the layers run so far, in float32.  A row depends on its own window alone, so
neither the number of windows nor how they are cut into steps changes it.  Reads no files.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flyweight.models.decoder import SingleProcess, embed_tokens, make_ropes
from flyweight.models.layer import make_layer
from flyweight.models.linear import Parts
from flyweight.ops import stack
from flyweight.ops.base import Ops
from flyweight.quantize.recording import Observe, record
from flyweight.sampling.arrays import columns
from flyweight.spec import ModelSpec
from flyweight.wire import F32, I32, Batch

BLOCK = 32  # positions in a block of K/V
STEP_TOKENS = 2048  # computed at once: enough for full speed, little memory


class LayerRun:
    """The windows of a calibration on their way through the layers; `windows` [W, L] are token
    ids.
    """

    def __init__(self, spec: ModelSpec, windows: I32) -> None:
        self.spec, self.windows = spec, windows
        self.count, self.length = windows.shape
        self.residual: F32 = np.empty((0, spec.hidden), np.float32)
        self._ropes = make_ropes(spec, self.length)

    @property
    def tokens(self) -> int:
        return self.windows.size

    def embed(self, ops: Ops, weights: Mapping[str, Any]) -> None:
        """The residual before the first layer, with the slots outside of layers."""
        parts = Parts(ops, SingleProcess(), self.spec, weights)
        rows = [embed_tokens(parts, batch) for _, batch in self._cut_steps()]
        self.residual = np.concatenate(rows)

    def observe(self, layer: int, ops: Ops, weights: Mapping[str, Any], observe: Observe) -> None:
        """Computes a layer for the inputs of its matrices alone: the residual stays, and the last
        product, which would only change it, is left out.
        """
        recording = record(ops, weights, observe, {f"layers.{layer}.down"})
        for rows, batch in self._cut_steps():
            self._run_step(layer, recording, weights, self.residual[rows].copy(), batch)

    def advance(self, layer: int, ops: Ops, weights: Mapping[str, Any]) -> None:
        """Computes a layer: the residual is the one after it."""
        for rows, batch in self._cut_steps():
            residual = self.residual[rows].copy()
            ops.add(self._run_step(layer, ops, weights, residual, batch), residual)
            self.residual[rows] = residual

    def _run_step(
        self, layer: int, ops: Ops, weights: Mapping[str, Any], residual: F32, batch: Batch
    ) -> F32:
        parts = Parts(ops, SingleProcess(), self.spec, weights)
        blocks = int(batch.tables.max()) + 1
        kv = ops.make_kv_layer(self.spec.layers[layer].kv, blocks, BLOCK, "f32")
        ropes = [ops.rotation(batch.positions, *rope) for rope in self._ropes]
        ops.begin(batch)
        x: F32 = stack.run([make_layer(parts, layer)], None, residual, [kv], batch, ropes)
        ops.end()
        return x

    def _cut_steps(self) -> Iterator[tuple[slice, Batch]]:
        """Rows of the residual, and the batch of their windows."""
        each = max(1, STEP_TOKENS // self.length)
        for first in range(0, self.count, each):
            windows = self.windows[first : first + each]
            start = first * self.length
            yield slice(start, start + windows.size), make_batch(windows)


def make_batch(windows: I32) -> Batch:
    """A step that computes whole sequences [S, L], without logits."""
    count, length = windows.shape
    blocks = -(-length // BLOCK)
    tables = np.arange(count * blocks, dtype=np.int32).reshape(count, blocks)
    positions = np.tile(np.arange(length, dtype=np.int32), count)
    slots = tables[:, positions[:length] // BLOCK] * BLOCK + positions[:length] % BLOCK
    return Batch(
        tokens=np.ascontiguousarray(windows.reshape(-1)),
        positions=positions,
        slots=np.ascontiguousarray(slots.reshape(-1).astype(np.int32)),
        starts=np.arange(0, windows.size + 1, length, dtype=np.int32),
        contexts=np.full(count, length, np.int32),
        tables=tables,
        rows=np.zeros(0, np.int32),
        sampling=columns([]),
    )


def list_numbers(slots: Sequence[str]) -> list[int]:
    """The layers that slots belong to."""
    return sorted({int(slot.split(".")[1]) for slot in slots if slot.startswith("layers.")})
