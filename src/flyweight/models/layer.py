"""A decoder layer: attention and feed-forward between norms, in the two orders there are.

Invariant: a layer takes the normed rows, and gives what is still to be added to the residual.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.models import attention, feedforward, norms
from flyweight.models.attention import Mixer
from flyweight.models.feedforward import FeedForward
from flyweight.models.norms import Norm, Plain, Scaled
from flyweight.ops.base import Comm, KVLayer, Ops, Rotation
from flyweight.spec import ModelSpec
from flyweight.wire import F32, Batch

After = Callable[[F32], F32]  # what is done to a block's output before it is added


@dataclass(frozen=True, slots=True)
class Serial:
    """Attention, then feed-forward on the residual that has it.  A norm that is not there is
    `Plain`.
    """

    attn_norm: Norm
    attn: Mixer
    attn_post: After
    mlp_norm: Norm
    mlp: FeedForward
    mlp_post: After
    rope: int | None

    def __call__(self, x: F32, residual: F32, kv: KVLayer, batch: Batch, rope: Rotation) -> F32:
        mixed = self.attn_post(self.attn(x, kv, batch, rope))
        return self.mlp_post(self.mlp(self.mlp_norm.add(mixed, residual)))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Attention and feed-forward of one residual, side by side (GPT-J, GPT-NeoX).  Without a
    second norm both read the first's rows.
    """

    ops: Ops
    attn_norm: Norm
    attn: Mixer
    mlp_norm: Norm | None
    mlp: FeedForward
    rope: int | None

    def __call__(self, x: F32, residual: F32, kv: KVLayer, batch: Batch, rope: Rotation) -> F32:
        out = self.attn(x, kv, batch, rope)
        self.ops.add(self.mlp(x if self.mlp_norm is None else self.mlp_norm(residual)), out)
        return out


Layer = Serial | Parallel


def made(ops: Ops, comm: Comm, spec: ModelSpec, i: int, weights: Mapping[str, Any]) -> Layer:
    """Layer i of a model."""
    at, layer = f"layers.{i}.", spec.layers[i]
    first, second, *posts = (
        norms.made(ops, spec.norm, weights, at + name)
        for name in ("attn_norm", "mlp_norm", "attn_post", "mlp_post")
    )
    attn = attention.made(ops, comm, layer, weights, at, spec.norm.eps)
    mlp = feedforward.made(ops, comm, layer, weights, at)
    if spec.parallel:
        own = None if isinstance(second, Plain) else second
        return Parallel(ops, first, attn, own, mlp, layer.rope)
    after: list[After] = list(posts)
    if spec.residual_scale != 1:
        after = [Scaled(ops, spec.residual_scale)] * 2
    return Serial(first, attn, after[0], second, mlp, after[1], layer.rope)
