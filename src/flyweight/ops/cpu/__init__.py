"""The CPU backend: `ops.base.Ops` over the native kernels, with one pool of threads.

Invariant: an output row depends on that row's inputs alone, bit for bit, whatever the threads and
the company.  Behind it: gemm (weights), attention (KV memory), stack (layers), sample.  Knows no
models and no files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from flyweight import _native
from flyweight.errors import ConfigError, nearest
from flyweight.ops.base import ACTIVATIONS, Part
from flyweight.ops.cpu.attention import Attention, make_kv_layer
from flyweight.ops.cpu.gemm import Gemm, PackedWeight, map_weight
from flyweight.ops.cpu.stack import CpuStack, find_gated, find_plain
from flyweight.ops.operands import HeadNorm, KVLayer, LowRank, Rotation, Weight, Weights
from flyweight.ops.reference_sample import add_listed, adjust, choose, find_cuts
from flyweight.ops.stack import Layer, adapt
from flyweight.spec import KVGroup, RouteSpec
from flyweight.wire import F32, F64, I32, U8, Batch, SampleBatch, Sampled

BF16_ISAS = ("avx512", "amx")
MAX_THREADS = 1024  # native/pool.cpp counts workers in ten bits


def available_isas() -> tuple[str, ...]:
    """Names of the instruction sets this machine can run, best last."""
    return tuple(_native.isas())


class CpuOps:
    """The op table on `threads` threads, the caller's among them; `isa` None takes the best.  A
    `pool` is that of another table with the same two.
    """

    def __init__(
        self,
        threads: int,
        isa: str | None = None,
        activations: str = "int8",
        pool: _native.Pool | None = None,
    ) -> None:
        known = available_isas()
        if isa is not None and isa not in known:
            raise ConfigError(
                "cannot run on this machine",
                "isa",
                value=isa,
                allowed=f"{', '.join(known)}{nearest(isa, known)}",
            )
        if activations not in ACTIVATIONS:
            allowed, near = ", ".join(ACTIVATIONS), nearest(activations, ACTIVATIONS)
            raise ConfigError(
                "is not valid", "activations", value=activations, allowed=f"{allowed}{near}"
            )
        if not 1 <= threads <= MAX_THREADS:
            near = str(min(max(threads, 1), MAX_THREADS))
            raise ConfigError(
                "is not valid",
                "threads",
                value=threads,
                allowed=f"1 to {MAX_THREADS}",
                hint=f"nearest valid: {near}",
            )
        try:
            self._pool = pool or _native.Pool(threads, isa or "")
        except RuntimeError as refused:
            raise ConfigError(
                f"; the system grants fewer ({refused})",
                "threads",
                value=threads,
                hint="nearest valid: 1",
            ) from refused
        self._activations = activations
        self._gemm = Gemm(self._pool, activations)
        self._attention = Attention(self._pool)

    @property
    def activations(self) -> str:
        return self._activations

    @property
    def kv_dtype(self) -> str:
        """bf16 where attention multiplies in it, with instructions made for that."""
        return "bf16" if self.isa in BF16_ISAS and self.activations != "f32" else "f16"

    @property
    def isa(self) -> str:
        return self._pool.isa

    @property
    def pool(self) -> _native.Pool:
        return self._pool

    @property
    def threads(self) -> int:
        return self._pool.threads

    @property
    def block_kinds(self) -> frozenset[str]:
        return frozenset(_native.block_kinds())

    # --- weights ---
    def pack(
        self,
        shape: tuple[int, int],
        parts: Iterable[Part],
        bias: F32 | None = None,
    ) -> PackedWeight:
        return self._gemm.pack(shape, parts, bias)

    def count_packed_bytes(self, shape: tuple[int, int], kind: str) -> int:
        return self._gemm.count_packed_bytes(shape, kind)

    @property
    def packing(self) -> str:
        return f"tiles {_native.PACKING} {self.isa}"

    def view_packed(self, weight: Weight) -> U8:
        return _check_packed(weight).tiles.bytes()

    def map_file(self, descriptor: int) -> _native.TileFile:
        return _native.TileFile(descriptor, False)

    def count_unmoved(self, file: _native.TileFile) -> int:
        return file.unmoved

    def move(self, file: _native.TileFile, count: int) -> None:
        file.move(self._pool, count)

    def map_weight(
        self,
        file: _native.TileFile,
        offset: int,
        shape: tuple[int, int],
        kind: str,
        bias: F32 | None,
    ) -> PackedWeight:
        return map_weight(file, offset, shape, kind, bias)

    def make_kv_layer(self, group: KVGroup, blocks: int, block_size: int, dtype: str) -> KVLayer:
        return make_kv_layer(group, blocks, block_size, dtype, self._activations)

    # --- step bounds: kernels hold nothing between ops ---
    def begin(self, batch: Batch) -> None: ...

    def end(self) -> None: ...

    # --- compute ---
    def embed(self, table: Weight, ids: I32) -> F32:
        return self._gemm.embed(_check_packed(table), ids)

    def linear(self, x: F32, w: Weight | tuple[Weight, ...]) -> F32:
        if isinstance(w, PackedWeight):
            return self._gemm.linear(x, w)
        assert isinstance(w, tuple), "a weight of another backend"
        return self._gemm.linear(x, tuple(_check_packed(part) for part in w))

    def norm(self, x: F32, w: F32, eps: float) -> F32:
        return _native.norm(self._pool, x, w, eps)

    def add_norm(self, x: F32, residual: F32, w: F32, eps: float) -> F32:
        return _native.add_norm(self._pool, x, residual, w, eps)

    def act(self, x: F32, kind: str) -> F32:
        return _native.act(self._pool, x, find_gated(kind))

    def add(self, x: F32, residual: F32) -> None:
        _native.add(self._pool, x, residual)

    def layer_norm(self, x: F32, w: F32, b: F32 | None, eps: float) -> F32:
        return _native.layer_norm(self._pool, x, w, b, eps)

    def layer_norm_heads(self, x: F32, w: F32, eps: float) -> None:
        heads, dim = w.shape
        part = x[:, : heads * dim]
        rows = np.ascontiguousarray(part).reshape(-1, dim)
        normed = self.layer_norm(rows, np.ones(dim, np.float32), None, eps)
        np.multiply(normed.reshape(len(x), heads * dim), w.reshape(-1), out=part)

    def activate(self, x: F32, kind: str) -> F32:
        return _native.activate(self._pool, x, find_plain(kind))

    def scale(self, x: F32, by: float) -> None:
        _native.scale(self._pool, x, by)

    def scale_rows(self, x: F32, by: F32) -> None:
        np.multiply(x, by.reshape(-1, *[1] * (x.ndim - 1)), out=x)

    def softcap(self, x: F32, cap: float) -> None:
        _native.softcap(self._pool, x, cap)

    def gate(self, x: F32, logits: F32) -> None:
        _native.gate(self._pool, x, logits)

    def concat(self, parts: Sequence[F32]) -> F32:
        return np.concatenate(parts, axis=-1)

    def linear_heads(self, x: F32, w: Sequence[Weights]) -> F32:
        return self._gemm.linear_heads(x, w)

    def route(self, logits: F32, spec: RouteSpec, bias: F32 | None = None) -> tuple[I32, F32]:
        scoring = _native.Scoring[spec.scoring]
        groups = spec.groups, spec.kept, spec.judges
        rule = (spec.top, scoring, spec.normalise, spec.scale, *groups)
        return _native.route(self._pool, logits, bias, rule)

    def experts(
        self, x: F32, ids: I32, weights: F32, up: Sequence[Weights], down: Sequence[Weights],
        act: str,
    ) -> F32:  # fmt: skip
        return self._gemm.experts(x, (ids, weights), (up, down), find_gated(act))

    def take(self, x: F32, rows: I32) -> F32:
        return _native.take(self._pool, x, rows)

    def adapt(self, y: F32, x: F32, low: Mapping[int, LowRank], batch: Batch) -> None:
        adapt(self, y, x, low, batch)

    def rotation(self, positions: I32, inv_freq: F32, scale: float) -> Rotation:
        return Rotation(*_native.rotation(self._pool, positions, inv_freq, scale))

    def rope_store(
        self, qkv: F32, kv: KVLayer, batch: Batch, rope: Rotation, norms: HeadNorm | None
    ) -> F32:
        return self._attention.rope_store(qkv, kv, batch, rope, norms)

    def attend(
        self,
        q: F32,
        kv: KVLayer,
        batch: Batch,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: F32 | None = None,
        chunk: int = 0,
    ) -> F32:
        return self._attention.attend(q, kv, batch, scale, window, softcap, sinks, chunk)

    def stack(self, layers: Sequence[Layer]) -> CpuStack:
        return CpuStack(self._pool, self._gemm, self._attention, layers)

    def replay(self, batch: Batch, kv: Sequence[KVLayer], body: Callable[[Batch], F32]) -> F32:
        return body(batch)

    def populate_kv(self, kv: KVLayer, first: int, count: int) -> None:
        self._attention.populate_kv(kv, first, count)

    def move_kv(self, kv: KVLayer, src: I32, dst: I32) -> None:
        self._attention.move_kv(kv, src, dst)

    def read_kv(self, kv: KVLayer, blocks: Sequence[int], out: U8) -> None:
        self._attention.read_kv(kv, blocks, out)

    def write_kv(self, kv: KVLayer, blocks: Sequence[int], data: U8) -> None:
        self._attention.write_kv(kv, blocks, data)

    def read_memory(self) -> None:
        """The host's memory."""

    def fetch(self, x: F32) -> F32:
        return x

    def upload(self, x: F32) -> F32:
        return x

    def sample(self, logits: F32, s: SampleBatch) -> Sampled:
        """Rows with one of the rarer cuts are drawn by the reference's chain; the kernel is given
        their tokens and adds the log-probabilities.
        """
        given, mu = (s.given, None) if s.cuts is None else _draw_rare(logits, s)
        answers = _native.sample(
            self._pool,
            logits,
            (s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.choice, s.position),
            (s.penalties, s.prompt, s.history, s.history_starts) if s.history.size else None,
            (s.bias_ids, s.bias_values, s.bias_starts) if s.bias_ids.size else None,
            (s.allowed_ids, s.allowed_starts) if s.allowed_ids.size else None,
            (s.banned_ids, s.banned_starts) if s.banned_ids.size else None,
            (s.repeat_ids, s.repeat_values, s.repeat_starts) if s.repeat_ids.size else None,
            (s.masks.rows, s.masks.words) if s.masks is not None else None,
            given,
            s.logprobs,
        )
        return add_listed(logits, s.listed, Sampled(*answers, mu))


def _check_packed(weight: Weight) -> PackedWeight:
    assert isinstance(weight, PackedWeight), "a weight of another backend"
    return weight


def _draw_rare(logits: F32, s: SampleBatch) -> tuple[I32, F64]:
    """The tokens known before the kernel starts, and mirostat's state after: [R] each."""
    given, mu = s.given.copy(), np.full(len(logits), np.nan)
    for r, cut in find_cuts(s).items():
        if given[r] >= 0:
            continue
        adjusted = adjust(logits[r], s, r)
        adjusted[np.isnan(adjusted)] = -np.inf  # as in the kernel
        given[r], mu[r] = choose(adjusted, s, r, cut)
    return given, mu
