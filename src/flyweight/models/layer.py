"""A decoder layer: attention and feed-forward between norms, in the two orders there are.

Invariant: a layer takes the normed rows, and gives what is still to be added to the residual.
"""

from dataclasses import dataclass

from flyweight.models import attention, feedforward, norms
from flyweight.models.attention import Mixer
from flyweight.models.feedforward import FeedForward
from flyweight.models.linear import Parts
from flyweight.models.norms import Plain, PostNorm, Scaled
from flyweight.ops.base import Ops
from flyweight.ops.operands import KVLayer, Rotation
from flyweight.ops.stack import Norm, Recipe, ResidualAdd
from flyweight.wire import Batch, Tensor

Post = Norm | Scaled  # what is done to a block's output before it is added


@dataclass(frozen=True, slots=True)
class Serial:
    """Attention, then feed-forward on the residual that has it.  A norm that is not there is
    `Plain`.
    """

    attn_norm: Norm
    attn: Mixer
    attn_post: Post
    mlp_norm: Norm
    mlp: FeedForward
    mlp_post: Post
    rope: int | None

    @property
    def reads_host(self) -> bool:
        return self.attn.reads_host or self.mlp.reads_host

    def __call__(
        self, x: Tensor, residual: Tensor, kv: KVLayer, batch: Batch, rope: Rotation
    ) -> Tensor:
        mixed = self.attn_post(self.attn(x, kv, batch, rope))
        return self.mlp_post(self.mlp(self.mlp_norm.add(mixed, residual), batch))

    def recipe(self) -> Recipe | None:
        attn, mlp = self.attn.recipe(), self.mlp.recipe()
        if attn is None or mlp is None or isinstance(self.mlp_norm, PostNorm):
            return None
        norms = self.attn_norm.recipe(), self.mlp_norm.recipe()
        posts = _make_residual_add(self.attn_post), _make_residual_add(self.mlp_post)
        return Recipe(norms[0], attn, posts[0], norms[1], mlp, posts[1], self.rope)


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

    @property
    def reads_host(self) -> bool:
        return self.attn.reads_host or self.mlp.reads_host

    def __call__(
        self, x: Tensor, residual: Tensor, kv: KVLayer, batch: Batch, rope: Rotation
    ) -> Tensor:
        out = self.attn(x, kv, batch, rope)
        own = x if self.mlp_norm is None else self.mlp_norm(residual)
        self.ops.add(self.mlp(own, batch), out)
        return out

    def recipe(self) -> None:
        return None


Layer = Serial | Parallel


def make_layer(parts: Parts, i: int) -> Layer:
    """Layer i of a model."""
    spec, at = parts.spec, f"layers.{i}."
    first, second, *posts = (
        norms.make_norm(parts, at + name)
        for name in ("attn_norm", "mlp_norm", "attn_post", "mlp_post")
    )
    attn, mlp, rope = (
        attention.make_mixer(parts, i),
        feedforward.make_feedforward(parts, i),
        spec.layers[i].rope,
    )
    if spec.parallel:
        own = None if isinstance(second, Plain) else second
        return Parallel(parts.ops, first, attn, own, mlp, rope)
    after: list[Post] = list(posts)
    if spec.residual_scale != 1:
        after = [Scaled(parts.ops, spec.residual_scale)] * 2
    return Serial(first, attn, after[0], second, mlp, after[1], rope)


def _make_residual_add(post: Post) -> ResidualAdd:
    return ResidualAdd(factor=post.by) if isinstance(post, Scaled) else ResidualAdd(post.recipe())
