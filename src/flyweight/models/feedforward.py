"""What follows attention in a layer: an MLP, gated or plain, or a mixture of experts.

Invariant: every row by itself; which experts a row takes depends on that row alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyweight.models.linear import Linear, Parts
from flyweight.ops.base import Comm, Ops
from flyweight.ops.operands import Weights
from flyweight.ops.stack import Feeding
from flyweight.spec import MoeSpec
from flyweight.wire import F32, I32, Batch, Tensor


class FeedForward(Protocol):
    """[T,H] -> [T,H]."""

    def __call__(self, x: Tensor, batch: Batch) -> Tensor: ...
    def recipe(self) -> Feeding | None: ...
    @property
    def reads_host(self) -> bool:
        """As `Layer.reads_host`."""
        ...


@dataclass(frozen=True, slots=True)
class Mlp:
    """down(act(up(x))).  A gated one (Shazeer, 2020) has gate and up as one matrix, and its `act`
    multiplies f(gate) with up.
    """

    ops: Ops
    comm: Comm
    inner: int
    up: Linear
    down: Linear
    act: str
    gated: bool

    reads_host = False

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        act = self.ops.act if self.gated else self.ops.activate
        inner = act(self.up(x, batch), self.act)
        return self.comm.all_reduce(self.down(inner, batch))

    def recipe(self) -> Feeding | None:
        if self.comm.size > 1:
            return None
        return Feeding(self.inner, self.up.weight, self.down.weight, self.act, self.gated)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts chosen by a router (Shazeer et al., 2017), and a shared one that always runs."""

    ops: Ops
    comm: Comm
    moe: MoeSpec
    router: Weights
    choice_bias: F32 | None
    up: Sequence[Weights]
    down: Sequence[Weights]
    act: str
    shared: FeedForward | None
    shared_gate: Weights | None

    @property
    def reads_host(self) -> bool:
        return self.moe.before

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        ops = self.ops
        ids, weights = ops.route(ops.linear(x, self.router), self.moe.route, self.choice_bias)
        out = self.comm.all_reduce(self._mix_experts(x, ids, weights))
        if self.shared is not None:
            always = self.shared(x, batch)
            if self.shared_gate is not None:
                ops.gate(always, ops.linear(x, self.shared_gate))
            ops.add(always, out)
        return out

    def _mix_experts(self, x: Tensor, ids: I32, weights: Tensor) -> Tensor:
        """The sum of what the chosen experts say."""
        ops, matrices = self.ops, (self.up, self.down, self.act)
        if not self.moe.before:
            return ops.experts(x, ids, weights, *matrices)
        out, once = None, np.ones((len(x), 1), np.float32)
        for j in range(ids.shape[1]):  # each expert's input has a weight of its own
            given = ops.concat((x,))
            ops.scale_rows(given, ops.concat((weights[:, j : j + 1],)).reshape(-1))
            said = ops.experts(given, ids[:, j : j + 1], once, *matrices)
            if out is not None:
                ops.add(out, said)
            out = said
        assert out is not None, "a mixture without experts"
        return out

    def recipe(self) -> None:
        return None


def make_feedforward(parts: Parts, i: int) -> FeedForward:
    """The block of layer i."""
    layer, at, ops, comm = parts.spec.layers[i], f"layers.{i}.", parts.ops, parts.comm
    kind = layer.act, layer.gated
    if layer.moe is None:
        up, down = parts.make_linear(at + "up"), parts.make_linear(at + "down")
        return Mlp(ops, comm, layer.inner, up, down, *kind)
    shared = None
    if layer.moe.shared:
        up, down = parts.make_linear(at + "shared_up"), parts.make_linear(at + "shared_down")
        shared = Mlp(ops, comm, layer.moe.shared, up, down, *kind)
    weights, experts = parts.weights, range(layer.moe.route.experts)
    return Mixture(
        ops,
        comm,
        layer.moe,
        weights[at + "router"],
        weights.get(at + "choice_bias"),
        [weights[f"{at}up.{e}"] for e in experts],
        [weights[f"{at}down.{e}"] for e in experts],
        layer.act,
        shared,
        weights.get(at + "shared_gate"),
    )
