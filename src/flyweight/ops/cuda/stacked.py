"""The experts' matrices of a layer, one behind the other in memory.

Invariant: a stack is made once, with the layers or at its first use; from then on its experts'
tensors are views of it, so that nothing is held twice.  A stack holds no reference to its experts.
Not known here: products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flyweight.ops.cuda.linear import Plan, find_plan
from flyweight.ops.cuda.weights import CudaWeight
from flyweight.ops.operands import Weights

SPARE = 1 << 31  # bytes that torch may keep of what stacking leaves
FIELDS = ("data", "bias", "scales", "lows", "supers", "super_lows", "row_scales")


@dataclass(frozen=True, slots=True)
class Stacked:
    """E matrices [N,K] of one kind: the fields of `CudaWeight`, [E,...]; `data` stands for those a
    kind has not.  `stride`: elements of a row of `data`; `groups`: numbers along K of `scales`.
    """

    shape: tuple[int, int]
    data: Tensor
    bias: Tensor
    scales: Tensor
    lows: Tensor
    supers: Tensor
    super_lows: Tensor
    row_scales: Tensor
    plan: Plan
    exact: bool
    tiles: str
    stride: int
    groups: int
    super_groups: int
    biased: bool
    row_scaled: bool


def stack_layers(layers: Sequence[Any], exact: bool) -> None:
    """Stacks the experts of all mixtures, while there is memory for a layer's experts twice."""
    for layer in layers:
        mlp = getattr(layer, "mlp", None)
        for experts in (getattr(mlp, "up", None), getattr(mlp, "down", None)):
            if isinstance(experts, list | tuple):
                find_stacked(experts, exact)


def find_stacked(experts: Sequence[Weights], exact: bool) -> Stacked | None:
    """The stack of a layer's experts; None where they differ in shape or kind, are tuples, or have
    columns in an order of their own.
    """
    first, last = experts[0], experts[-1]
    if not isinstance(first, CudaWeight) or not isinstance(last, CudaWeight):
        return None
    held: tuple[int, Stacked | None] | None = first.cache.get(("experts", exact))
    if held is not None and held[0] == id(experts):
        stack = held[1]
        if stack is None or stack.data[-1].data_ptr() == last.data.data_ptr():
            return stack
    stack = make_stacked(experts, exact)
    first.cache[("experts", exact)] = id(experts), stack
    return stack


def make_stacked(experts: Sequence[Weights], exact: bool) -> Stacked | None:
    alike = _list_alike(experts)
    if not alike:
        return None
    first, whole = alike[0], _find_fields(alike)
    form, data = first.form, whole["data"]
    assert data is not None
    tiles = "dense" if form is None else "packed" if form.packed else "bytes"
    return Stacked(
        shape=first.shape,
        **{name: data if x is None else x for name, x in whole.items()},
        plan=find_plan(first, exact),
        exact=exact,
        tiles=f"exact_{tiles}" if exact else tiles,
        stride=first.data.stride(0),
        groups=0 if first.scales is None else first.scales.shape[0],
        super_groups=0 if first.supers is None else first.supers.shape[0],
        biased=first.bias is not None,
        row_scaled=first.row_scales is not None,
    )


def _list_alike(experts: Sequence[Weights]) -> list[CudaWeight]:
    """The experts, if they can be one stack."""
    first, alike = experts[0], []
    for w in experts:
        if not isinstance(w, CudaWeight) or not isinstance(first, CudaWeight):
            return []
        same = (w.shape, w.kind, w.bias is None) == (first.shape, first.kind, first.bias is None)
        if not same or w.columns is not None:
            return []
        alike.append(w)
    return alike if len(set(map(id, alike))) == len(alike) else []


def _find_fields(experts: Sequence[CudaWeight]) -> dict[str, Tensor | None]:
    """The fields of all experts, [E,...], made once."""
    held: dict[str, Tensor | None] | None = experts[0].cache.get("fields")
    if held is not None:
        data = held["data"]
        assert data is not None
        if len(data) == len(experts) and all(
            w.data.data_ptr() == part.data_ptr() for w, part in zip(experts, data, strict=True)
        ):
            return held
    whole = {name: _stack_field(experts, name) for name in FIELDS}
    for w in experts:
        w.cache.clear()  # plans may point to the memory that was left
    experts[0].cache["fields"] = whole
    if experts[0].data.is_cuda and torch.cuda.memory_reserved() > (
        torch.cuda.memory_allocated() + SPARE
    ):
        torch.cuda.empty_cache()
    return whole


def _stack_field(experts: Sequence[CudaWeight], name: str) -> Tensor | None:
    """One field; the experts' tensors become views of it, one after the other."""
    first: Tensor | None = getattr(experts[0], name)
    if first is None:
        return None
    whole = torch.empty((len(experts), *first.shape), dtype=first.dtype, device=first.device)
    for e, w in enumerate(experts):
        whole[e].copy_(getattr(w, name))
        object.__setattr__(w, name, whole[e])
    return whole
