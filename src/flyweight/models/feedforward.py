"""What follows attention in a layer: an MLP, gated or plain, or a mixture of experts.

Invariant: every row by itself; which experts a row takes depends on that row alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flyweight.ops.base import Comm, Ops, Weights
from flyweight.spec import LayerSpec, MoeSpec
from flyweight.wire import F32


class FeedForward(Protocol):
    """[T,H] -> [T,H]."""

    def __call__(self, x: F32) -> F32: ...


@dataclass(frozen=True, slots=True)
class Gated:
    """down(f(gate(x)) * up(x)) (Shazeer, 2020); `up` is gate and up as one matrix."""

    ops: Ops
    comm: Comm
    up: Weights
    down: Weights
    act: str

    def __call__(self, x: F32) -> F32:
        ops = self.ops
        inner = ops.act(ops.linear(x, self.up), self.act)
        return self.comm.all_reduce(ops.linear(inner, self.down))


@dataclass(frozen=True, slots=True)
class TwoLayers:
    """down(f(up(x)))."""

    ops: Ops
    comm: Comm
    up: Weights
    down: Weights
    act: str

    def __call__(self, x: F32) -> F32:
        ops = self.ops
        inner = ops.activate(ops.linear(x, self.up), self.act)
        return self.comm.all_reduce(ops.linear(inner, self.down))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts chosen by a router (Shazeer et al., 2017), and a shared one that always runs."""

    ops: Ops
    comm: Comm
    moe: MoeSpec
    router: Weights
    bias: F32 | None
    up: Sequence[Weights]
    down: Sequence[Weights]
    act: str
    shared: FeedForward | None
    shared_gate: Weights | None

    def __call__(self, x: F32) -> F32:
        ops = self.ops
        ids, weights = ops.route(ops.linear(x, self.router), self.moe.route, self.bias)
        out = self.comm.all_reduce(ops.experts(x, ids, weights, self.up, self.down, self.act))
        if self.shared is not None:
            always = self.shared(x)
            if self.shared_gate is not None:
                ops.gate(always, ops.linear(x, self.shared_gate))
            ops.add(always, out)
        return out


def made(
    ops: Ops, comm: Comm, layer: LayerSpec, weights: Mapping[str, Any], at: str
) -> FeedForward:
    """The block whose slots begin with `at`."""
    if layer.moe is None:
        kind = Gated if layer.gated else TwoLayers
        return kind(ops, comm, weights[at + "up"], weights[at + "down"], layer.act)
    shared = None
    if layer.moe.shared:
        up, down = weights[at + "shared_up"], weights[at + "shared_down"]
        shared = Gated(ops, comm, up, down, layer.act)
    experts = range(layer.moe.route.experts)
    return Mixture(
        ops,
        comm,
        layer.moe,
        weights[at + "router"],
        weights.get(at + "router_bias"),
        [weights[f"{at}up.{e}"] for e in experts],
        [weights[f"{at}down.{e}"] for e in experts],
        layer.act,
        shared,
        weights.get(at + "shared_gate"),
    )
