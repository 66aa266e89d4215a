"""Attention of one whole prompt in two ways: naively, by a matrix with a score for every pair of
positions, and by the engine's kernel, which never builds it.

Invariant: both get the same random q, k and v in float32, and see the same positions.  The naive
way works in place where NumPy can, so its memory is the least that it needs.
"""

from dataclasses import dataclass

import numpy as np

from flyweight.ops.base import Ops
from flyweight.ops.operands import Rotation
from flyweight.sampling.arrays import columns
from flyweight.spec import KVGroup
from flyweight.wire import F32, Batch

BLOCK = 32  # tokens in a block of K/V
FLOAT = 4


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """q [N,Hq,D] and k, v [N,Hk,D] of a prompt of N tokens."""

    q: F32
    k: F32
    v: F32

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    @property
    def matrix(self) -> int:
        """Bytes of the scores of one head."""
        return len(self.q) ** 2 * FLOAT


def make_inputs(
    tokens: int, heads: int = 2, kv_heads: int = 1, dim: int = 64, seed: int = 0
) -> AttentionInputs:
    rng = np.random.default_rng(seed)
    shapes = (tokens, heads, dim), (tokens, kv_heads, dim), (tokens, kv_heads, dim)
    q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return AttentionInputs(q, k, v)


def attend_naively(x: AttentionInputs) -> F32:
    """[N,Hq*D]: softmax of the causal scores, times v, one head after the other."""
    tokens, heads, dim = x.q.shape
    share = heads // x.k.shape[1]
    out = np.empty((tokens, heads, dim), np.float32)
    scores = np.empty((tokens, tokens), np.float32)
    for head in range(heads):
        k, v = x.k[:, head // share], x.v[:, head // share]
        np.matmul(x.q[:, head] * np.float32(x.scale), k.T, out=scores)
        for i in range(tokens):
            scores[i, i + 1 :] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True)
        out[:, head] = (scores @ v) / total
    return out.reshape(tokens, heads * dim)


class TiledAttention:
    """The engine's kernel over K/V in blocks, kept in float32."""

    def __init__(self, ops: Ops, x: AttentionInputs) -> None:
        tokens, _, dim = x.q.shape
        group = KVGroup(x.k.shape[1], dim, dim)
        self.ops, self.scale = ops, x.scale
        self.kv = ops.make_kv_layer(group, -(-tokens // BLOCK), BLOCK, "f32")
        self.batch = make_batch(tokens)
        parts = [part.reshape(tokens, -1) for part in (x.q, x.k, x.v)]
        still = Rotation(
            np.ones((tokens, dim // 2), np.float32), np.zeros((tokens, dim // 2), np.float32)
        )
        self.q = ops.rope_store(np.concatenate(parts, axis=1), self.kv, self.batch, still, None)

    def attend(self) -> F32:
        """[N,Hq*D]."""
        out: F32 = self.ops.attend(self.q, self.kv, self.batch, self.scale)
        return out


def make_batch(tokens: int) -> Batch:
    """One prompt in one step."""
    positions = np.arange(tokens, dtype=np.int32)
    return Batch(
        tokens=np.zeros_like(positions),
        positions=positions,
        slots=positions,
        starts=np.array([0, tokens], np.int32),
        contexts=np.array([tokens], np.int32),
        tables=np.arange(-(-tokens // BLOCK), dtype=np.int32)[None],
        rows=np.array([tokens - 1], np.int32),
        sampling=columns([]),
    )
