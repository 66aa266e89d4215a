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

from flyweight.ops.cuda.product_plans import ProductPlan, find_plan
from flyweight.ops.cuda.weights import CudaWeight
from flyweight.ops.operands import Weights

SPARE = 1 << 31  # bytes that torch may keep of what stacking leaves
FIELDS = ("data", "bias", "scales", "lows", "supers", "super_lows", "row_scales")


@dataclass(frozen=True, slots=True)
class Stacked:
    """E matrices [N,K] of one kind: the fields of `CudaWeight`, [E,...]; `data` is of those a
    kind has not.  `last`: where the last expert's data is; `stride`: elements of a row of `data`;
    `groups`: numbers along K of `scales`.
    """

    shape: tuple[int, int]
    data: Tensor
    bias: Tensor
    scales: Tensor
    lows: Tensor
    supers: Tensor
    super_lows: Tensor
    row_scales: Tensor
    plan: ProductPlan
    exact: bool
    tiles: str
    last: int
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


def find_stacked(experts: Sequence[Weights], exact: bool) -> tuple[Stacked, ...]:
    """The stacks of a layer's experts, side by side along N as a tuple's parts are; none where
    experts differ in shape or kind, or have columns in an order of their own.
    """
    first, last = _find_first(experts[0]), _find_first(experts[-1])
    held: tuple[int, tuple[Stacked, ...]] | None = first.cache.get(("experts", exact))
    if held is not None and held[0] == id(experts):
        stacks = held[1]
        if not stacks or stacks[0].last == last.data.data_ptr():
            return stacks
    stacks = make_stacks(experts, exact)
    first.cache[("experts", exact)] = id(experts), stacks
    return stacks


def make_stacks(experts: Sequence[Weights], exact: bool) -> tuple[Stacked, ...]:
    parts: list[tuple[Any, ...]] = [w if isinstance(w, tuple) else (w,) for w in experts]
    if len(set(map(len, parts))) > 1:
        return ()
    columns = list(zip(*parts, strict=True))
    if not all(map(_are_alike, columns)):
        return ()
    return tuple(_make_stack(column, exact) for column in columns)


def _make_stack(experts: Sequence[CudaWeight], exact: bool) -> Stacked:
    first, whole = experts[0], _find_fields(experts)
    form, data = first.form, whole["data"]
    assert data is not None
    tiles = "dense" if form is None else "packed" if form.packed else "bytes"
    return Stacked(
        shape=first.shape,
        **{name: data if x is None else x for name, x in whole.items()},
        plan=find_plan(first, exact),
        exact=exact,
        tiles=f"exact_{tiles}" if exact else tiles,
        last=data[-1].data_ptr(),
        stride=first.data.stride(0),
        groups=0 if first.scales is None else first.scales.shape[0],
        super_groups=0 if first.supers is None else first.supers.shape[0],
        biased=first.bias is not None,
        row_scaled=first.row_scales is not None,
    )


def _find_first(w: Any) -> CudaWeight:
    first: CudaWeight = w[0] if isinstance(w, tuple) else w
    return first


def _are_alike(experts: Sequence[CudaWeight]) -> bool:
    """Whether experts can be one stack."""
    kinds = {(w.shape, w.kind, w.bias is None, w.columns is None) for w in experts}
    return (
        len(kinds) == 1
        and experts[0].columns is None
        and len(set(map(id, experts))) == len(experts)
    )


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
