"""Steps as CUDA graphs: captured at the first step of a size, replayed in later ones.

Invariant: a replayed step gives the bits of the ops it was captured from.  What a captured body
reads is the step's fixed columns (step.py) and memory that never moves: weights, K and V.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from flyweight.ops.cuda.step import DeviceBatch

Body = Callable[[Any], Tensor]


class Graphs:
    """Captured steps by the memory of the first layer's K, which is that of one model, and by size:
    rows and width of the tables, both rounded up by `Stager`.  They end with that memory.
    """

    def __init__(self) -> None:
        self._held = WeakIdKeyDictionary()

    def run(self, step: DeviceBatch, owner: Tensor, body: Body) -> Tensor:
        """body(step), replayed where it was captured with this `owner`."""
        steps: CapturedSteps | None = self._held.get(owner)
        if steps is None:
            steps = self._held[owner] = CapturedSteps()
        return steps.run(step, body)


class CapturedSteps:
    """The captured steps of one model.  Their memory is apart from that of other models, whose
    steps may come between a step and the use of its result.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._held: dict[tuple[int, ...], tuple[Any, Tensor]] = {}

    def run(self, step: DeviceBatch, body: Body) -> Tensor:
        size = tuple(step.tables.shape)
        if size not in self._held:
            self._held[size] = self._capture(step, body)
        graph, out = self._held[size]
        graph.replay()
        return out

    def _capture(self, step: DeviceBatch, body: Body) -> tuple[Any, Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are compiled and chosen outside the capture
            body(step)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = body(step)
        return graph, out
