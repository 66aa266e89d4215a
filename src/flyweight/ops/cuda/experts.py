"""Mixtures of experts: routing, and the experts' matrices as one grouped product.

Invariant: a row's bits depend on that row and the weights alone: an answer of an expert is one sum
along K, whatever tile its pair (token, choice) is in, and answers are added in the order of ids.
Nothing waits for the device.  Only the experts that are chosen are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flyweight.ops.cuda import linear, rows
from flyweight.ops.cuda.kernels import experts as kernels
from flyweight.ops.cuda.kernels import route as routing
from flyweight.ops.cuda.launch import launch_pipelined
from flyweight.ops.cuda.stacked import Stacked, find_stacked
from flyweight.ops.cuda.tiles import choose_tile
from flyweight.ops.operands import Weights
from flyweight.spec import RouteSpec

# By class: (most pairs an expert on average, BN, BT, BK, warps, stages); the last line is for any
# number.  BK is the same in a class: it is part of the order of a sum.
TILES: dict[str, list[tuple[int, int, int, int, int, int]]] = {
    "dense": [
        (8, 64, 16, 64, 4, 5),
        (24, 64, 32, 64, 4, 5),
        (64, 128, 64, 64, 4, 4),
        (0, 128, 128, 64, 8, 4),
    ],
    "packed": [
        (8, 64, 16, 128, 4, 4),
        (24, 64, 32, 128, 4, 4),
        (64, 64, 64, 128, 4, 3),
        (0, 128, 128, 128, 8, 3),
    ],
    "bytes": [
        (8, 64, 16, 128, 4, 4),
        (24, 64, 32, 128, 4, 4),
        (64, 64, 64, 128, 4, 3),
        (0, 128, 128, 128, 8, 3),
    ],
    "exact_dense": [(16, 64, 16, 32, 4, 2), (0, 64, 32, 32, 4, 2)],
    "exact_packed": [(16, 64, 16, 128, 4, 1), (0, 64, 32, 128, 4, 1)],
    "exact_bytes": [(16, 64, 16, 128, 4, 1), (0, 64, 32, 128, 4, 1)],
}
CHUNK = 4096  # pairs that a program of the sort counts at once
MOST_PAIRS = 32768  # that are computed at once
BLOCK = 512  # elements of a program of the weighted sum


@dataclass(frozen=True, slots=True)
class Tables:
    """Tiles of `bt` pairs, at most `tiles` of them, as kernels/experts.py lays them out; `mean`:
    pairs an expert; `alone`: `data` are the ids of one token, whose tiles have one pair.
    """

    data: Tensor
    span: int
    tiles: int
    bt: int
    mean: int
    alone: bool


def route(logits: Tensor, spec: RouteSpec, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """[T,E] -> ids [T,k], best first, and their weights [T,k]."""
    tokens, logits = logits.shape[0], logits.contiguous()
    ids = torch.empty((tokens, spec.top), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, spec.top), dtype=torch.float32, device=logits.device)
    if tokens:
        per = spec.experts // spec.groups
        routing.route_kernel[(tokens,)](
            logits, logits if bias is None else bias, ids, weights, spec.experts, spec.top,
            _round_up(spec.top), spec.scoring, spec.normalise, spec.scale, spec.groups,
            min(spec.kept, spec.groups), min(spec.judges, per), _round_up(spec.groups),
            _round_up(per), bias is not None, num_warps=1,
        )  # fmt: skip
    return ids, weights


def experts(
    x: Tensor, chosen: tuple[Tensor, Tensor], up: Sequence[Weights], down: Sequence[Weights],
    act: str, activations: str,
) -> Tensor:  # fmt: skip
    """[T,H] -> [T,H] float32: the sum, in the order of ids, of weight * down(act(up(x)))."""
    rows.check_gated(act)
    exact = activations == "f32"
    x, ids, weights = linear.round_rows(x, exact), chosen[0].contiguous(), chosen[1].contiguous()
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if not out.numel():
        return out
    ups, downs = find_stacked(up, exact), find_stacked(down, exact)
    top = ids.shape[1]
    step = max(1, MOST_PAIRS // top)
    for start in range(0, len(x), step):
        span = slice(start, start + step)
        if ups and downs:
            said = _ask_chosen(x[span], ids[span], ups, downs, act)
        else:
            said = _ask_in_turn(x[span], ids[span], up, down, act, activations)
        grid = (len(said) // top, -(-x.shape[1] // BLOCK))
        kernels.sum_pairs[grid](said, weights[span], out[span], x.shape[1], top, BLOCK)
    return out


def _ask_chosen(
    x: Tensor, ids: Tensor, up: tuple[Stacked, ...], down: tuple[Stacked, ...], act: str
) -> Tensor:
    """The answers [T*k,H] of the chosen experts, in grouped products."""
    (tokens, top), count = ids.shape, len(up[0].data)
    pairs, mean = tokens * top, tokens * top // count
    bt = choose_tile(TILES[up[0].tiles], mean)[1]
    tiles = min(count, pairs) + pairs // bt
    if tokens == 1:
        tables = Tables(ids, 0, pairs, bt, mean, True)
    else:
        sorted_pairs, span = _sort(ids, count, bt, tiles)
        tables = Tables(sorted_pairs, span, tiles, bt, mean, False)
    if len(up) == 1:
        inner = _multiply(x, up[0], tables, pairs, top, act)
    else:
        parts = [_multiply(x, part, tables, pairs, top) for part in up]
        inner = rows.act(torch.cat(parts, 1), act, x.dtype)
    said = [_multiply(inner, part, tables, pairs, 1) for part in down]
    return said[0] if len(said) == 1 else torch.cat(said, 1)


def _sort(ids: Tensor, experts: int, bt: int, tiles: int) -> tuple[Tensor, int]:
    """The tables of a call, and their span (kernels/experts.py)."""
    pairs, span = ids.numel(), -(-tiles // 16) * 16
    tables = torch.empty(3 * span + pairs, dtype=torch.int32, device=ids.device)
    chunk = min(CHUNK, max(128, _round_up(pairs)))
    kernels.sort_kernel[(experts,)](
        ids, tables, pairs, span, experts, _round_up(experts + 1), bt, chunk,
        num_warps=4 if chunk < 2048 else 8,
    )  # fmt: skip
    return tables, span


def _multiply(x: Tensor, w: Stacked, tables: Tables, pairs: int, top: int, act: str = "") -> Tensor:
    """Rows of pairs, `top` of which share a row of x, times their experts' [N,K]: [pairs,N]
    float32, or [pairs,N/2] for the next product where there is an activation.
    """
    (n, k), plan = w.shape, w.plan
    bn, _, bk, warps, stages = choose_tile(TILES[w.tiles], tables.mean)
    wide, each = (n // 2, bn // 2) if act else (n, bn)
    out = torch.empty((pairs, wide), dtype=x.dtype if act else torch.float32, device=x.device)
    launch_pipelined(
        kernels.multiply_pairs[(-(-wide // each), tables.tiles)],
        ("pairs", bn, tables.bt, bk, warps, *plan.form, act), stages,
        x, w.data, plan.table, w.scales, w.lows, w.supers, w.super_lows, w.row_scales, w.bias,
        tables.data, out, n, k, x.stride(0), w.stride, w.groups, w.super_groups, tables.span,
        -(-k // bk), *plan.form, bn, tables.bt, bk, k % bk == 0, w.exact, w.row_scaled, w.biased,
        top, act, tables.alone, num_warps=warps,
    )  # fmt: skip
    return out


def _ask_in_turn(
    x: Tensor, ids: Tensor, up: Sequence[Weights], down: Sequence[Weights], act: str,
    activations: str,
) -> Tensor:  # fmt: skip
    """The answers [T*k,H] of experts that cannot be one product: every expert's to every row."""
    said: Tensor | None = None
    for e in range(len(up)):
        inner = rows.act(linear.linear(x, up[e], activations, True), act, x.dtype)
        answer = linear.linear(inner, down[e], activations, True)[:, None, :]
        if said is None:
            said = answer.expand(-1, ids.shape[1], -1).contiguous()
        said = torch.where((ids == e)[:, :, None], answer, said)
    assert said is not None, "a mixture without experts"
    return said.flatten(0, 1)


def _round_up(count: int) -> int:
    """The next power of 2, from 2 on."""
    return max(2, 1 << (count - 1).bit_length())
