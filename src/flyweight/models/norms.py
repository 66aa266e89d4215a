"""The norms a decoder is put together from: one way to call them, whatever they compute.

Invariant: `norm(x)` leaves x as it is; `norm.add(x, residual)` adds x to the residual in place and
returns the norm of the sum.  A place without a norm has `Plain`.
"""

from dataclasses import dataclass

from flyweight.models.linear import Parts
from flyweight.ops.base import Ops
from flyweight.ops.stack import Norm, RowNorm
from flyweight.wire import F32, Tensor


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Zhang and Sennrich, 2019; Gemma's 1+w is added to the weights at load."""

    ops: Ops
    w: F32
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.norm(x, self.w, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.ops.add_norm(x, residual, self.w, self.eps)

    def recipe(self) -> RowNorm:
        return RowNorm(self.w, None, self.eps, centred=False)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Ba et al., 2016; `b` None where a family has no biases."""

    ops: Ops
    w: F32
    b: F32 | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.layer_norm(x, self.w, self.b, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        self.ops.add(x, residual)
        return self(residual)

    def recipe(self) -> RowNorm:
        return RowNorm(self.w, self.b, self.eps, centred=True)


@dataclass(frozen=True, slots=True)
class PostNorm:
    """A norm that replaces the residual (post-norm): the next block and the next sum both begin
    with the normed rows.
    """

    ops: Ops
    norm: Norm

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        self.ops.add(x, residual)
        residual[:] = self.norm(residual)
        return residual

    def recipe(self) -> RowNorm | None:
        return self.norm.recipe()


@dataclass(frozen=True, slots=True)
class Plain:
    """No norm: the rows themselves."""

    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        self.ops.add(x, residual)
        return residual

    def recipe(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Scaled:
    """What a block adds to the residual, multiplied (Granite)."""

    ops: Ops
    by: float

    def __call__(self, x: Tensor) -> Tensor:
        self.ops.scale(x, self.by)
        return x


def make_norm(parts: Parts, name: str) -> Norm:
    """The norm in slot `name`; `Plain` where the model has none there."""
    ops, spec, weights = parts.ops, parts.spec.norm, parts.weights
    if name not in weights:
        return Plain(ops)
    norm: Norm
    if spec.kind == "layer":
        norm = LayerNorm(ops, weights[name], weights.get(f"{name}_bias"), spec.eps)
    else:
        norm = RmsNorm(ops, weights[name], spec.eps)
    return PostNorm(ops, norm) if spec.post else norm
