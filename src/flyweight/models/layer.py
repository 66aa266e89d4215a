"""A decoder layer: attention and feed-forward between norms, in the two orders there are.

Invariant: a layer takes the normed rows, and gives what is still to be added to the residual.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flyweight.models import attention, feedforward, norms
from flyweight.models.attention import Mixer
from flyweight.models.feedforward import FeedForward
from flyweight.models.linear import Parts
from flyweight.models.norms import Norm, Plain, Scaled
from flyweight.ops.base import KVLayer, Ops, Rotation
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
        return self.mlp_post(self.mlp(self.mlp_norm.add(mixed, residual), batch))


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
        own = x if self.mlp_norm is None else self.mlp_norm(residual)
        self.ops.add(self.mlp(own, batch), out)
        return out


Layer = Serial | Parallel


def made(parts: Parts, i: int) -> Layer:
    """Layer i of a model."""
    spec, at = parts.spec, f"layers.{i}."
    first, second, *posts = (
        norms.made(parts, at + name) for name in ("attn_norm", "mlp_norm", "attn_post", "mlp_post")
    )
    attn, mlp, rope = attention.made(parts, i), feedforward.made(parts, i), spec.layers[i].rope
    if spec.parallel:
        own = None if isinstance(second, Plain) else second
        return Parallel(parts.ops, first, attn, own, mlp, rope)
    after: list[After] = list(posts)
    if spec.residual_scale != 1:
        after = [Scaled(parts.ops, spec.residual_scale)] * 2
    return Serial(first, attn, after[0], second, mlp, after[1], rope)
