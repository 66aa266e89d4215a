"""Products of rows with packed weights.

Invariant: a row's bits depend on that row and the weight alone: how K is split belongs to the
weight, and a tile's shape does not change the order of a sum (kernels/gemm.py).  Dense bfloat16
weights of many rows go to cuBLAS where the caller allows it.  Not known here: layers.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flyweight.ops.cuda.forms import pad
from flyweight.ops.cuda.kernels import pdl
from flyweight.ops.cuda.kernels.embed import embed_dense, embed_grouped
from flyweight.ops.cuda.kernels.gemm import multiply
from flyweight.ops.cuda.launch import launch_pipelined
from flyweight.ops.cuda.product_plans import find_plan, list_form, make_table
from flyweight.ops.cuda.stacked import find_stacked
from flyweight.ops.cuda.tiles import choose_tile, limit_registers
from flyweight.ops.cuda.weights import CudaWeight
from flyweight.ops.operands import LowRank, Weight, Weights
from flyweight.wire import Batch

ONE, WALK, PARTS = range(3)

WALKING = 132  # tiles from which on a program walks all splits
COUNTERS = 4096
BAND = 16  # tiles along T that are next to each other in time
CUBLAS = 64  # rows from which on cuBLAS multiplies, where it may


def linear(x: Tensor, w: Weights, activations: str, deterministic: bool) -> Tensor:
    """[T,K] -> [T,N] float32; outputs of a tuple are side by side."""
    exact = activations == "f32"
    x = round_rows(x, exact)
    if isinstance(w, CudaWeight):
        if not deterministic and not exact and w.kind == "bf16" and len(x) >= CUBLAS:
            return multiply_dense(x, w)
        out = torch.empty(len(x), w.shape[0], dtype=torch.float32, device=x.device)
        multiply_into(x, w, out, exact)
        return out
    assert isinstance(w, tuple)
    wide = sum(part.shape[0] for part in w)
    out, column = torch.empty(len(x), wide, dtype=torch.float32, device=x.device), 0
    for part in w:
        assert isinstance(part, CudaWeight)
        multiply_into(x, part, out[:, column : column + part.shape[0]], exact)
        column += part.shape[0]
    return out


def round_rows(x: Tensor, exact: bool) -> Tensor:
    """x in the type that is multiplied, its rows contiguous."""
    wanted = torch.float32 if exact else torch.bfloat16
    if x.dtype != wanted:
        x = x.to(wanted)
    return x if x.stride(-1) == 1 else x.contiguous()


def multiply_dense(x: Tensor, w: CudaWeight) -> Tensor:
    """cuBLAS: the order of a sum depends on the number of rows."""
    if x.is_cuda:
        out = torch.mm(x, w.data.t(), out_dtype=torch.float32)
    else:
        out = torch.mm(x.float(), w.data.float().t())
    return out if w.bias is None else out.add_(w.bias)


def multiply_into(x: Tensor, w: CudaWeight, out: Tensor, exact: bool) -> None:
    """out [T,N], whose rows may be part of longer ones, = x [T,K] times w."""
    count, (n, k) = len(x), w.shape
    if not count:
        return
    plan = find_plan(w, exact)
    if w.columns is not None:
        x = x.index_select(1, w.columns)
    tile = bn, bt, bk, warps, stages = choose_tile(plan.tiles, count)
    blocks, splits = -(-n // bn) * -(-count // bt), plan.splits
    mode = ONE if splits == 1 else WALK if blocks >= min(WALKING, COUNTERS) else PARTS
    parts = out
    if mode == PARTS:
        parts = torch.empty(splits, count, n, dtype=torch.float32, device=x.device)
        blocks *= splits
    launch_pipelined(
        multiply[(blocks,)], (*tile, *plan.form), stages,
        x, w.data, plan.table, _or(w.scales, w), _or(w.lows, w), _or(w.supers, w),
        _or(w.super_lows, w), _or(w.row_scales, w), _or(w.bias, w), out, parts,
        find_counters(x.device), count, n, k, x.stride(0), w.data.stride(0), out.stride(0),
        0, 0, 0, 0, 0, plan.steps, plan.per, splits, *plan.form, bn, bt, bk, mode, plan.even, exact,
        w.row_scales is not None, w.bias is not None, BAND, pdl.PDL,
        num_warps=warps, launch_pdl=pdl.PDL,
        maxnreg=limit_registers(tile, count, w.form is None),
    )  # fmt: skip


@cache
def find_counters(device: torch.device) -> Tensor:
    """Of ended splits, by tile; 0 between products, which follow one another on one stream."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def _or(x: Tensor | None, w: CudaWeight) -> Tensor:
    """A pointer that is not read, where there is nothing to point to."""
    return w.data if x is None else x


def embed(table: Weight, ids: Tensor) -> Tensor:
    """[T] -> [T,K] float32: rows as their format defines them; no product is fused with a sum."""
    assert isinstance(table, CudaWeight)
    (n, k), form = table.shape, table.form
    out = torch.empty(len(ids), k, dtype=torch.float32, device=ids.device)
    if not len(ids):
        return out
    if form is None:
        embed_dense[(len(ids), -(-k // 1024))](table.data, ids, out, k, 1024)
        return out
    values = make_table(form.values, False, ids.device) if form.read == "table" else table.data
    embed_grouped[(len(ids), pad(k) // 128)](
        table.data.view(torch.uint8), values, _or(table.scales, table), _or(table.lows, table),
        _or(table.supers, table), _or(table.super_lows, table), _or(table.row_scales, table),
        _or(table.columns, table), ids, out, n, k, 4 * table.data.stride(0), *list_form(form),
        table.row_scales is not None, table.columns is not None,
        num_warps=2, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def linear_heads(x: Tensor, w: Sequence[Weights], activations: str, deterministic: bool) -> Tensor:
    """[T,Hq,K] x Hq of (N,K) -> [T,Hq,N]."""
    exact = activations == "f32"
    x = round_rows(x, exact)
    sizes = [sum(p.shape[0] for p in h) if isinstance(h, tuple) else h.shape[0] for h in w]
    out = torch.empty(len(x), len(w), sizes[0], dtype=torch.float32, device=x.device)
    stacks = find_stacked(w, exact) if len(x) else ()
    column = 0
    for stack in stacks:
        multiply_stack(x, stack, out[:, :, column : column + stack.shape[0]])
        column += stack.shape[0]
    if stacks:
        return out
    for h, head in enumerate(w):
        column = 0
        for part in head if isinstance(head, tuple) else (head,):
            assert isinstance(part, CudaWeight)
            multiply_into(x[:, h], part, out[:, h, column : column + part.shape[0]], exact)
            column += part.shape[0]
    return out


def multiply_stack(x: Tensor, w: Any, out: Tensor) -> None:
    """The same for heads that follow each other in memory, in one kernel."""
    plan, count, (n, k) = w.plan, len(x), w.shape
    tile = bn, bt, bk, warps, stages = choose_tile(plan.tiles, count)
    blocks = -(-n // bn) * -(-count // bt)
    launch_pipelined(
        multiply[(blocks, len(w.data))], (*tile, *plan.form), stages,
        x, w.data, plan.table, w.scales, w.lows, w.supers, w.super_lows, w.row_scales, w.bias, out,
        out, find_counters(x.device), count, n, k, x.stride(0), w.stride, out.stride(0),
        x.stride(1), n * w.stride, w.groups, w.super_groups, out.stride(1), plan.steps, plan.per,
        plan.splits, *plan.form, bn, bt, bk, ONE if plan.splits == 1 else WALK, plan.even, w.exact,
        w.row_scaled, w.biased, BAND, pdl.PDL, num_warps=warps, launch_pdl=pdl.PDL,
        maxnreg=limit_registers(tile, count, plan.form[0] < 0),
    )  # fmt: skip


def adapt(ops: Any, y: Tensor, x: Tensor, low: Mapping[int, LowRank], batch: Batch) -> None:
    """y += up(down(x)) in place, for the rows of sequences with an adapter."""
    assert batch.adapters is not None
    owners = np.repeat(batch.adapters, np.diff(batch.starts))  # [T]
    for i, pair in low.items():
        rows = np.flatnonzero(owners == i)
        if len(rows) == len(x):
            y += ops.linear(ops.linear(x, pair.down), pair.up)
        elif len(rows):
            where = torch.from_numpy(rows).to(x.device, non_blocking=True)
            some = ops.linear(ops.linear(x.index_select(0, where), pair.down), pair.up)
            y.index_add_(0, where, some)
