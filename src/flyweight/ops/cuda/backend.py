"""The op table of the CUDA backend: each op checks nothing and calls its module.

Invariant: no op waits for the device but `sample` and `fetch`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import ACTIVATIONS, Part
from flyweight.ops.cuda import attention, experts, linear, rows, sample, weights
from flyweight.ops.cuda.device import count_devices, read_memories, read_memory
from flyweight.ops.cuda.graphs import Body, Graphs
from flyweight.ops.cuda.kv import CudaKV
from flyweight.ops.cuda.stacked import stack_layers
from flyweight.ops.cuda.step import DeviceBatch, Stager
from flyweight.ops.operands import HeadNorm, KVLayer, LowRank, Rotation, Weight, Weights
from flyweight.ops.stack import Layer, SteppedStack
from flyweight.spec import KVGroup, RouteSpec
from flyweight.wire import U8, Batch, SampleBatch, Sampled


class CudaOps:
    """The op table on `device`.  `deterministic`: a row's bits do not depend on the number of rows
    in the call; without it dense matrices of many rows are multiplied by cuBLAS.
    """

    def __init__(
        self, device: str = "cuda", activations: str = "bf16", deterministic: bool = True,
        graphs: bool = True,
    ) -> None:  # fmt: skip
        if activations not in ACTIVATIONS:
            allowed, near = ", ".join(ACTIVATIONS), nearest(activations, ACTIVATIONS)
            raise ConfigError(
                "is not valid", "activations", value=activations, allowed=f"{allowed}{near}"
            )
        self.device, self.deterministic = torch.device(device), deterministic
        self.graphs = graphs and self.device.type == "cuda"
        self.dtype = torch.float32 if activations == "f32" else torch.bfloat16
        self._activations = activations
        self._vectors: dict[int, tuple[Any, Tensor]] = {}  # host array, its copy; by id
        self._stager, self._graphs = Stager(self.device), Graphs()
        self._batch: Batch | None = None
        self._staged: DeviceBatch | None = None

    @property
    def activations(self) -> str:
        return self._activations

    @property
    def kv_dtype(self) -> str:
        return "bf16"

    @property
    def isa(self) -> str:
        """The device's name, for people."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "triton"

    block_kinds: frozenset[str] = frozenset()

    # --- host arrays ---
    def find_batch(self, batch: Batch | DeviceBatch) -> DeviceBatch:
        """The batch on the device; a captured step passes its own."""
        if isinstance(batch, DeviceBatch):
            return batch
        if batch is not self._batch or self._staged is None:
            self._batch, self._staged = batch, self._stager.stage(batch)
        return self._staged

    def _find_column(self, x: Any) -> Tensor:
        """A batch's tokens or positions, already on the device where they are this step's."""
        batch = self._batch
        if batch is not None and x is batch.tokens:
            return self.find_batch(batch).tokens
        if batch is not None and x is batch.positions:
            return self.find_batch(batch).positions
        return self.upload(x)

    def find_vector(self, x: Any) -> Tensor:
        """A vector of weights on the device, float32, copied at its first use."""
        if isinstance(x, Tensor):
            return x
        held = self._vectors.get(id(x))
        if held is None:
            copy = torch.from_numpy(np.array(x, np.float32)).to(self.device)
            held = self._vectors[id(x)] = (x, copy)
        return held[1]

    def upload(self, x: Any) -> Tensor:
        """An array on the device, without waiting for other work there; a tensor as it is."""
        if isinstance(x, Tensor):
            return x
        held = torch.from_numpy(np.ascontiguousarray(x))
        if self.device.type == "cuda":
            assert not torch.cuda.is_current_stream_capturing(), "a graph would read freed memory"
            return held.pin_memory().to(self.device, non_blocking=True)
        return held

    # --- weights ---
    def pack(
        self, shape: tuple[int, int], parts: Iterable[Part], bias: Any = None
    ) -> weights.CudaWeight:
        return weights.pack(shape, parts, bias, self.device)

    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int:
        return weights.count_packed_bytes(shape, kind)

    def make_kv_layer(
        self, group: KVGroup, blocks: int, block_size: int, dtype: str
    ) -> attention.CudaKV:
        return attention.make_kv_layer(
            group, blocks, block_size, dtype, self.device, self._activations
        )

    # --- step bounds ---
    def begin(self, batch: Batch) -> None:
        """Its columns are copied at their first use; a captured step has others."""
        self._batch, self._staged = batch, None

    def end(self) -> None: ...

    # --- rows ---
    def embed(self, table: Weight, ids: Any) -> Tensor:
        """[T] -> [T,H] float32: the residual's first value."""
        return linear.embed(table, self._find_column(ids))

    def norm(self, x: Tensor, w: Any, eps: float) -> Tensor:
        return rows.norm(x, self.find_vector(w), eps, self.dtype)

    def add_norm(self, x: Tensor, residual: Tensor, w: Any, eps: float) -> Tensor:
        return rows.add_norm(x, residual, self.find_vector(w), eps, self.dtype)

    def layer_norm(self, x: Tensor, w: Any, b: Any, eps: float) -> Tensor:
        bias = None if b is None else self.find_vector(b)
        return rows.layer_norm(x, self.find_vector(w), bias, eps, self.dtype)

    def layer_norm_heads(self, x: Tensor, w: Any, eps: float) -> None:
        rows.layer_norm_heads(x, self.find_vector(w), eps)

    def act(self, x: Tensor, kind: str) -> Tensor:
        return rows.act(x, kind, self.dtype)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return rows.activate(x, kind, self.dtype)

    def add(self, x: Tensor, residual: Tensor) -> None:
        residual += x

    def scale(self, x: Tensor, by: float) -> None:
        x *= by

    def scale_rows(self, x: Tensor, by: Any) -> None:
        x *= self.upload(by).view(-1, *[1] * (x.ndim - 1))

    def softcap(self, x: Tensor, cap: float) -> None:
        rows.softcap(x, cap)

    def gate(self, x: Tensor, logits: Tensor) -> None:
        rows.gate(x, logits)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(tuple(parts), dim=-1)

    def take(self, x: Tensor, rows: Any) -> Tensor:
        return x.index_select(0, self.upload(rows).long())

    # --- matrices ---
    def linear(self, x: Tensor, w: Weights) -> Tensor:
        """[T,K] -> [T,N] float32."""
        return linear.linear(x, w, self._activations, self.deterministic)

    def linear_heads(self, x: Tensor, w: Sequence[Weights]) -> Tensor:
        return linear.linear_heads(x, w, self._activations, self.deterministic)

    def adapt(self, y: Tensor, x: Tensor, low: Mapping[int, LowRank], batch: Batch) -> None:
        linear.adapt(self, y, x, low, batch)

    def route(self, logits: Tensor, spec: RouteSpec, bias: Any = None) -> tuple[Tensor, Tensor]:
        return experts.route(logits, spec, None if bias is None else self.find_vector(bias))

    def experts(
        self, x: Tensor, ids: Any, weights: Any, up: Sequence[Weights], down: Sequence[Weights],
        act: str,
    ) -> Tensor:  # fmt: skip
        chosen = self.upload(ids), self.upload(weights)
        return experts.experts(x, chosen, up, down, act, self._activations)

    # --- attention ---
    def rotation(self, positions: Any, inv_freq: Any, scale: float) -> Rotation:
        where = self._find_column(positions)
        return attention.rotation(where, self.find_vector(inv_freq), scale)

    def rope_store(
        self, qkv: Tensor, kv: KVLayer, batch: Batch, rope: Rotation, norms: HeadNorm | None
    ) -> Tensor:
        moved = Rotation(self.upload(rope.cos), self.upload(rope.sin))
        if norms is not None:
            norms = HeadNorm(self.find_vector(norms.q), self.find_vector(norms.k), norms.eps)
        return attention.rope_store(qkv, kv, self.find_batch(batch), moved, norms)

    def attend(
        self, q: Tensor, kv: KVLayer, batch: Batch, scale: float, window: int = 0,
        softcap: float = 0.0, sinks: Any = None, chunk: int = 0,
    ) -> Tensor:  # fmt: skip
        held = None if sinks is None else self.find_vector(sinks)
        seen = attention.Seen(scale, window, softcap, held, chunk)
        return attention.attend(q, kv, self.find_batch(batch), seen, self.dtype)

    def populate_kv(self, kv: KVLayer, first: int, count: int) -> None:
        """Device memory is found when it is allocated."""

    def move_kv(self, kv: KVLayer, src: Any, dst: Any) -> None:
        attention.move_kv(kv, self.upload(src), self.upload(dst))

    def read_kv(self, kv: KVLayer, blocks: Sequence[int], out: U8) -> None:
        attention.read_kv(kv, blocks, out)

    def write_kv(self, kv: KVLayer, blocks: Sequence[int], data: U8) -> None:
        attention.write_kv(kv, blocks, data)

    # --- the rest ---
    def sample(self, logits: Tensor, s: SampleBatch) -> Sampled:
        return sample.sample(logits, s)

    def stack(self, layers: Sequence[Layer]) -> SteppedStack:
        self.graphs = self.graphs and not any(layer.reads_host for layer in layers)
        stack_layers(layers, self._activations == "f32")
        return SteppedStack(layers)

    def replay(self, batch: Batch, kv: Sequence[KVLayer], body: Body) -> Tensor:
        if not self.graphs or not kv:
            return body(batch)
        assert isinstance(kv[0], CudaKV)
        step = self._stager.pad(batch, kv[0])
        if step is None:
            return body(batch)
        return self._graphs.run(step, kv[0].k, body)[: len(batch.tokens)]

    def read_memory(self) -> tuple[int, int] | None:
        return read_memory(self.device)

    def read_memories(self, count: int) -> list[tuple[int, int]]:
        own = read_memory(self.device)
        return [] if own is None else [own, *read_memories(range(1, count))]

    def count_devices(self) -> int | None:
        return count_devices(self.device)

    def fetch(self, x: Tensor) -> Any:
        """A host copy, float32 where it is of floats."""
        return (x.float() if x.is_floating_point() else x).cpu().numpy()
