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
from flyweight.spec import LayerSpec, MoeSpec
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
        return self.comm.all_reduce(self.compute_part(x, batch))

    def compute_part(self, x: Tensor, batch: Batch) -> Tensor:
        """What this rank adds to the sum over ranks."""
        act = self.ops.act if self.gated else self.ops.activate
        return self.down(act(self.up(x, batch), self.act), batch)

    def recipe(self) -> Feeding | None:
        if self.comm.size > 1:
            return None
        return Feeding(self.inner, self.up.weight, self.down.weight, self.act, self.gated)


class ExpertSum(Protocol):
    """The sum of what the chosen experts say: [T,H], ids and weights [T,k] -> [T,H]."""

    def __call__(self, x: Tensor, ids: I32, weights: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class AllExperts:
    """Experts whose weights multiply what they say."""

    ops: Ops
    up: Sequence[Weights]
    down: Sequence[Weights]
    act: str

    def __call__(self, x: Tensor, ids: I32, weights: Tensor) -> Tensor:
        return self.ops.experts(x, ids, weights, self.up, self.down, self.act)


@dataclass(frozen=True, slots=True)
class InputWeightedExperts:
    """Experts whose weights multiply what they are given (Llama 4)."""

    experts: AllExperts

    def __call__(self, x: Tensor, ids: I32, weights: Tensor) -> Tensor:
        ops, once = self.experts.ops, np.ones((len(x), 1), np.float32)
        out = None
        for j in range(ids.shape[1]):  # each expert's input has a weight of its own
            given = ops.concat((x,))
            ops.scale_rows(given, ops.concat((weights[:, j : j + 1],)).reshape(-1))
            said = self.experts(given, ids[:, j : j + 1], once)
            if out is not None:
                ops.add(out, said)
            out = said
        assert out is not None, "a mixture without experts"
        return out


@dataclass(frozen=True, slots=True)
class HeldExperts:
    """The experts that a rank has, of those that tokens choose (expert parallelism).  A token and
    one of its experts are a row of the product; a token's rows are added in the order of its ids.
    """

    experts: ExpertSum
    first: int
    count: int

    def __call__(self, x: F32, ids: I32, weights: F32) -> F32:
        mine = (ids >= self.first) & (ids < self.first + self.count)  # [T, k]
        out = np.zeros_like(x)
        tokens, places = np.nonzero(mine)
        if not len(tokens):
            return out
        chosen = (ids[tokens, places] - self.first).astype(np.int32)[:, None]
        said = self.experts(x[tokens], chosen, np.ascontiguousarray(weights[tokens, places, None]))
        counts = mine.sum(axis=1)
        starts = np.cumsum(counts) - counts
        for j in range(int(counts.max())):
            rows = np.flatnonzero(counts > j)
            out[rows] += said[starts[rows] + j]
        return out


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts chosen by a router (Shazeer et al., 2017), and a shared one that always runs.  Each
    rank adds its parts of both, so that they are summed over ranks in one all-reduce.
    """

    ops: Ops
    comm: Comm
    moe: MoeSpec
    router: Weights
    choice_bias: F32 | None
    experts: ExpertSum
    shared: Mlp | None
    shared_gate: Weights | None

    @property
    def reads_host(self) -> bool:
        return self.moe.before

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        ops = self.ops
        ids, weights = ops.route(ops.linear(x, self.router), self.moe.route, self.choice_bias)
        out = self.experts(x, ids, weights)
        if self.shared is not None:
            always = self.shared.compute_part(x, batch)
            if self.shared_gate is not None:
                ops.gate(always, ops.linear(x, self.shared_gate))
            ops.add(always, out)
        return self.comm.all_reduce(out)

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
    weights = parts.weights
    return Mixture(
        ops,
        comm,
        layer.moe,
        weights[at + "router"],
        weights.get(at + "choice_bias"),
        make_experts(parts, at, layer),
        shared,
        weights.get(at + "shared_gate"),
    )


def make_experts(parts: Parts, at: str, layer: LayerSpec) -> ExpertSum:
    """The experts of a layer that this process has."""
    moe, weights = layer.moe, parts.weights
    assert moe is not None
    first, count = moe.held or (0, moe.route.experts)
    up = [weights[f"{at}up.{e}"] for e in range(count)]
    down = [weights[f"{at}down.{e}"] for e in range(count)]
    experts: ExpertSum = AllExperts(parts.ops, up, down, layer.act)
    if moe.before:
        experts = InputWeightedExperts(AllExperts(parts.ops, up, down, layer.act))
    return experts if moe.held is None else HeldExperts(experts, first, count)
