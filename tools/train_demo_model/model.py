"""The Llama network in torch, as small as it can be written; shared by training, export and checks.

Weights of one kind are one tensor with the layer first, so that the optimiser treats all layers in
one batched call. Rotary pairs are (i, i + head/2), transformers' convention; export.py re-orders.
Matrices multiply in bfloat16 where `low` says so; the master weights stay float32.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama network with tied embeddings; head size is dim / heads."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int = 2048
    context: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head(self) -> int:
        return self.dim // self.heads

    @property
    def qkv(self) -> tuple[int, int, int]:
        """Rows of the fused projection that belong to queries, keys and values."""
        return self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head

    def to_dict(self) -> dict[str, int | float]:
        return asdict(self)


SHAPES = {
    "stories": Shape(dim=192, layers=6, heads=6, kv_heads=2, hidden=512),
    "stories-draft": Shape(dim=64, layers=3, heads=2, kv_heads=1, hidden=192),
}


def rotary_table(shape: Shape) -> Tensor:
    """Cosines and sines, [2, context, head], each half of the last axis the same."""
    half = torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head
    angle = torch.arange(shape.context)[:, None] * shape.rope_base**-half  # [context, head/2]
    angle = torch.cat((angle, angle), dim=-1)
    return torch.stack((angle.cos(), angle.sin())).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary position embedding of x [batch, heads, time, head]."""
    low, high = x.chunk(2, dim=-1)
    return x * table[0] + torch.cat((-high, low), dim=-1) * table[1]


class Llama(nn.Module):
    """Token ids [batch, time] -> logits [batch, time, vocab], every row from position 0."""

    def __init__(self, shape: Shape, low: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shape, self.low = shape, low
        layers, dim, hidden = shape.layers, shape.dim, shape.hidden
        self.embed = nn.Parameter(torch.randn(shape.vocab, dim) * 0.02)
        self.attn_norm = nn.Parameter(torch.ones(layers, dim))
        self.ffn_norm = nn.Parameter(torch.ones(layers, dim))
        self.out_norm = nn.Parameter(torch.ones(dim))
        self.qkv = nn.Parameter(torch.randn(layers, sum(shape.qkv), dim) * dim**-0.5)
        self.gate_up = nn.Parameter(torch.randn(layers, 2 * hidden, dim) * dim**-0.5)
        # Zero outputs: every block starts as the identity, and depth costs nothing at first.
        self.attn_out = nn.Parameter(torch.zeros(layers, dim, shape.qkv[0]))
        self.down = nn.Parameter(torch.zeros(layers, dim, hidden))
        self.register_buffer("table", rotary_table(shape).to(low), persistent=False)
        future = torch.full((shape.context, shape.context), float("-inf"), dtype=low).triu(1)
        self.register_buffer("future", future, persistent=False)

    def matrices(self) -> list[nn.Parameter]:
        return [self.qkv, self.attn_out, self.gate_up, self.down]

    def forward(self, ids: Tensor) -> Tensor:
        table = self.table[:, : ids.shape[1]]
        embed = self.embed.to(self.low)
        x = F.embedding(ids, embed)  # [batch, time, dim]
        stacks = (self.attn_norm, self.ffn_norm, *self.matrices())
        for attn_norm, ffn_norm, *weights in zip(
            *(w.to(self.low).unbind() for w in stacks), strict=True
        ):
            qkv, attn_out, gate_up, down = weights
            x = x + self._attention(self._norm(x, attn_norm), table, qkv) @ attn_out.T
            gate, up = F.linear(self._norm(x, ffn_norm), gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(self._norm(x, self.out_norm.to(self.low)), embed)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.shape.dim,), weight, self.shape.eps)

    def _attention(self, x: Tensor, table: Tensor, qkv: Tensor) -> Tensor:
        batch, time, dim = x.shape
        parts = F.linear(x, qkv).split(self.shape.qkv, dim=-1)
        q, k, v = (p.view(batch, time, -1, self.shape.head).transpose(1, 2) for p in parts)
        q, k = rotate(q, table) * self.shape.head**-0.5, rotate(k, table)
        # Query heads of one KV head as one long row block: a plain batched product, which the CPU
        # runs faster than the fused attention's backward pass at these lengths.
        kv_heads, share = self.shape.kv_heads, self.shape.heads // self.shape.kv_heads
        q = q.reshape(batch, kv_heads, share * time, -1)
        scores = (q @ k.mT).view(batch, kv_heads, share, time, time) + self.future[:time, :time]
        y = scores.softmax(dim=-1).view(batch, kv_heads, share * time, time) @ v
        return y.view(batch, -1, time, self.shape.head).transpose(1, 2).reshape(batch, time, dim)
