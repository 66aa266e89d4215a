"""Decoder layers on the device: in the finer ops, or replayed from captured CUDA graphs.

Invariant: a replayed step gives the bits of the finer ops.  A graph is captured at the first step
of its size: rows and table width, both rounded up by `stage`; padding rows write to the spare
block.  Knows no families.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flyweight.ops.cuda.step import DeviceBatch
from flyweight.ops.operands import KVLayer, Rotation
from flyweight.ops.stack import Layer, run
from flyweight.wire import Batch


class CapturedStep:
    """One size of step as a graph, with its inputs and output in fixed places."""

    def __init__(
        self, layers: Sequence[Layer], kv: Sequence[KVLayer],
        like: tuple[Tensor, Sequence[Rotation]], batch: DeviceBatch, pool: Any,
    ) -> None:  # fmt: skip
        residual, ropes = like
        self.residual = residual.clone()
        self.ropes = [Rotation(rope.cos.clone(), rope.sin.clone()) for rope in ropes]
        inputs: Any = batch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled and chosen outside the capture
            run(layers, None, self.residual.clone(), kv, inputs, self.ropes)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.out = run(layers, None, self.residual, kv, inputs, self.ropes)

    def replay(self, residual: Tensor, ropes: Sequence[Rotation]) -> Tensor:
        """Runs the layers; `residual` is changed as the finer ops change it."""
        self.residual.copy_(residual)
        for held, rope in zip(self.ropes, ropes, strict=True):
            if held.cos.numel():
                held.cos.copy_(rope.cos)
                held.sin.copy_(rope.sin)
        self.graph.replay()
        residual.copy_(self.residual)
        return self.out


class CudaStack:
    """Layers run one after the other, or replayed."""

    def __init__(self, ops: Any, layers: Sequence[Layer]) -> None:
        self.ops, self.layers = ops, layers
        self._pool: Any = None
        self._kv: tuple[KVLayer, ...] | None = None
        self._steps: dict[tuple[int, ...], CapturedStep] = {}

    def __call__(
        self, residual: Tensor, kv: Sequence[KVLayer], batch: Batch, ropes: Sequence[Rotation]
    ) -> Tensor:
        staged = self.ops.find_batch(batch)
        if not staged.fixed:
            return run(self.layers, None, residual, kv, batch, ropes)
        if self._kv is not kv:
            self._steps, self._kv = {}, tuple(kv)
            self._pool = torch.cuda.graph_pool_handle()
        size = tuple(staged.tables.shape)
        step = self._steps.get(size)
        if step is None:
            step = CapturedStep(self.layers, kv, (residual, ropes), staged, self._pool)
            self._steps[size] = step
        return step.replay(residual, ropes)
