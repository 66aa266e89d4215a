"""What writes the KV cache on the device and what reads it.

Invariant: a row's bits do not depend on which launch computes it:
tiles of keys and splits of the context are at fixed positions (`Tiles`), and both launches run one
kernel.  No op waits for the device.  Knows no models.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from flyweight.ops.cuda.kernels import attend as tiled
from flyweight.ops.cuda.kernels import store as rows
from flyweight.ops.cuda.kernels import store_codes
from flyweight.ops.cuda.kernels.pdl import PDL
from flyweight.ops.cuda.kv import CODES, CudaKV, make_kv_layer, move_kv, read_kv, write_kv
from flyweight.ops.cuda.launch import launch_pipelined
from flyweight.ops.cuda.step import DeviceBatch
from flyweight.ops.operands import HeadNorm, KVLayer, Rotation
from flyweight.spec import KVGroup

__all__ = [
    "CudaKV", "Seen", "attend", "make_kv_layer", "move_kv", "read_kv", "rope_store", "rotation",
    "write_kv",
]  # fmt: skip

LOG2E = 1.4426950408889634
NO_END = 1 << 30  # a window or a chunk beyond every position
STORE_HEADS = 8  # heads of a token that one program of `store_rows` takes
PROCESSORS = 132  # of the device; only times depend on it
MANY_PROGRAMS = 1024  # enough to keep the device busy: more splits share a program
MOST_POSITIONS = 4096  # of a program, where contexts may differ much


@dataclass(frozen=True, slots=True)
class TileShape:
    """How many query rows a program has, and how it is launched."""

    rows: int
    warps: int
    stages: int
    registers: int | None = None  # at most, a thread


@dataclass(frozen=True, slots=True)
class Tiles:
    """Keys of a tile and positions of a split decide the bits; the shapes do not: for `few` rows,
    for few rows of few programs, which need deep pipelines (`lone`), for `many` rows.  The first
    `near` positions are in splits of `short`, so that a short context has several.
    """

    keys: int
    short: int
    near: int
    split: int
    few: TileShape
    lone: TileShape
    many: TileShape

    def count_splits(self, context: int) -> int:
        beyond = max(0, context - self.near)
        return -(-min(context, self.near) // self.short) + -(-beyond // self.split)


_counters: dict[torch.device, list[Tensor]] = {}

# By what is multiplied: pairs of bf16 in heads of up to 128 or 256 elements or beyond; float32.
# All shapes of an entry must give the same bits.  The tests check it on the GPU: a Hopper GPU
# multiplies 16 rows (mma) and 64 (wgmma) in one order.
CONFIG = {
    name: Tiles(32, 128, 1024, 512, *(TileShape(*shape) for shape in shapes))
    for name, shapes in {
        "small": ((16, 4, 4), (64, 4, 3), (128, 8, 3)),
        "large": ((64, 8, 3), (64, 8, 5), (64, 8, 3)),
        "huge": ((64, 8, 2), (64, 8, 2), (64, 8, 2)),
        "float32": ((16, 4, 1), (16, 4, 1), (16, 4, 1)),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a query sees, and how its scores are made: `attend`'s options."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    chunk: int = 0


def rotation(positions: Tensor, inv_freq: Tensor, scale: float) -> Rotation:
    """cos and sin, [T, dim/2] float32 each."""
    tokens, half = positions.numel(), inv_freq.numel()
    cos, sin = inv_freq.new_empty((2, tokens, half)).unbind(0)
    if tokens and half:
        padded = triton.next_power_of_2(half)
        launch: Any = rows.rotate_angles[(tokens,)]
        launch(
            positions,
            inv_freq,
            cos,
            sin,
            half,
            scale,
            P=padded,
            PDL=PDL,
            num_warps=1,
            launch_pdl=PDL,
        )
    return Rotation(cos, sin)


def rope_store(
    qkv: Tensor, kv: KVLayer, batch: DeviceBatch, rope: Rotation, norms: HeadNorm | None
) -> Tensor:
    """[T, (Hq+Hk)*Dk + Hk*Dv] -> q [T,Hq,Dk], in bf16 where attention multiplies bf16."""
    assert isinstance(kv, CudaKV)
    group, (tokens, width) = kv.group, qkv.shape
    heads = (width - group.width) // group.k_dim
    kind = torch.bfloat16 if kv.pairs and kv.scales is None else torch.float32
    q = qkv.new_empty((tokens, heads, group.k_dim), dtype=kind)
    if not tokens:
        return q
    cos: Any = rope.cos
    half = cos.shape[1]
    q_norm, k_norm, weights, sizes, eps = 0, 0, (qkv, qkv), qkv, 0.0
    if norms is not None:
        of_q: Any = norms.q
        of_k: Any = norms.k
        weights, eps = (of_q, of_k), norms.eps
        q_norm = 1 if of_q.numel() == group.k_dim else 2
        k_norm = 1 if of_k.numel() == group.k_dim else 2
        if 2 in (q_norm, k_norm):
            sizes = _measure_rows(qkv, heads, group, eps)
    tiles = triton.cdiv(heads, STORE_HEADS) + triton.cdiv(group.heads, STORE_HEADS)
    launch: Any = rows.store_rows[(tokens, tiles)]
    launch(
        qkv, cos, rope.sin, *weights, sizes, batch.slots, q, kv.k, kv.k if kv.v is None else kv.v,
        *(kv.scales or (qkv, qkv)), width, half, eps, HQ=heads, HK=group.heads, DK=group.k_dim,
        DV=group.v_dim, BLOCK=kv.block_size, HEADS=STORE_HEADS,
        PK=triton.next_power_of_2(group.k_dim), PV=triton.next_power_of_2(group.v_dim),
        Q_NORM=q_norm, K_NORM=k_norm, IN_K=group.v_in_k, CODE=CODES.get(kv.dtype, 0),
        TURNS=kv.turns, PDL=PDL, num_warps=4, launch_pdl=PDL,
    )  # fmt: skip
    if batch.ancestors is not None:
        move_kv(kv, *batch.ancestors)
    return q


def _measure_rows(qkv: Tensor, heads: int, group: KVGroup, eps: float) -> Tensor:
    """1 / RMS of all heads of q and of k: [T,2]."""
    sizes = qkv.new_empty((len(qkv), 2))
    q_wide, k_wide = heads * group.k_dim, group.heads * group.k_dim
    launch: Any = rows.measure_rows[(len(qkv), 2)]
    width = qkv.shape[1]
    launch(qkv, sizes, width, q_wide, k_wide, eps, P=1024, PDL=PDL, num_warps=4, launch_pdl=PDL)
    return sizes


def choose_tiles(kv: CudaKV) -> Tiles:
    if not kv.pairs:
        return CONFIG["float32"]
    widest = max(kv.group.k_dim, kv.group.v_dim)
    return CONFIG["small" if widest <= 128 else "large" if widest <= 256 else "huge"]


def split_columns(group: KVGroup) -> dict[str, int]:
    """K's columns as two ranges, each padded to a power of two: of 576 elements 512 and 64.  Where
    V is in K it is the first of them.
    """
    k_dim, power = group.k_dim, triton.next_power_of_2
    first, count = 0, k_dim
    if group.v_in_k:
        first, count = k_dim - group.v_dim, group.v_dim
    elif k_dim > 16 and (half := power(k_dim) // 2) + max(16, power(k_dim - half)) < power(k_dim):
        count = half
    rest = k_dim - count
    return {
        "F0": first, "N0": count, "P0": max(16, power(count)),
        "F1": 0 if first else count, "N1": rest, "P1": max(16, power(max(rest, 1))),
        "PV": max(16, power(group.v_dim)),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttendPlan:
    """How a call is launched: `each` tokens and `padded` heads a program, `head_tiles` programs
    for the heads of a KV head; `programs` side by side, for each of `lanes` shares of the splits.
    """

    tiles: Tiles
    shape: TileShape
    padded: int
    head_tiles: int
    each: int
    programs: int
    splits: int
    lanes: int


def plan_launch(kv: CudaKV, batch: DeviceBatch, tokens: int, share: int) -> AttendPlan:
    """From what is known on the host; `share` query heads of a KV head."""
    tiles, wide = choose_tiles(kv), triton.next_power_of_2(share)
    few = batch.most * wide <= tiles.few.rows
    shape = tiles.few if few else tiles.many
    padded = min(wide, shape.rows)
    each = 1 if batch.most == 1 else shape.rows // padded
    head_tiles = triton.cdiv(share, padded)
    items = tokens if batch.decode else tokens // each + batch.tables.shape[0]  # see `find_tile`
    programs, splits = items * head_tiles * kv.group.heads, tiles.count_splits(batch.longest)
    lanes = 1
    if batch.most == 1:
        long = triton.cdiv(batch.longest, MOST_POSITIONS)
        lanes = min(splits, max(triton.cdiv(MANY_PROGRAMS, programs), long))
    elif 2 * programs <= PROCESSORS:
        lanes = min(splits, PROCESSORS // programs)
    if few and programs * lanes <= 2 * PROCESSORS:
        shape = tiles.lone
    return AttendPlan(tiles, shape, padded, head_tiles, each, programs, splits, lanes)


def attend(q: Tensor, kv: KVLayer, batch: DeviceBatch, seen: Seen, dtype: torch.dtype) -> Tensor:
    """[T,Hq,Dk] -> [T, Hq*Dv] in `dtype`."""
    assert isinstance(kv, CudaKV)
    group, (tokens, heads, _) = kv.group, q.shape
    out = q.new_empty((tokens, heads * group.v_dim), dtype=dtype)
    if not tokens:
        return out
    if kv.turns:
        q = _turn(q, kv.turns)
    plan = plan_launch(kv, batch, tokens, heads // group.heads)
    tiles, shape = plan.tiles, plan.shape
    parts = marks = counters = out
    if plan.lanes > 1:
        parts = out.new_empty((tokens, heads, plan.splits, group.v_dim), dtype=torch.float32)
        marks = parts.new_empty((tokens, heads, plan.splits, 2))
        counters = _find_counters(q.device, plan.programs)
    unit = (seen.softcap or seen.scale) * LOG2E
    shrink = seen.scale / seen.softcap if seen.softcap else 1.0
    sinks = out if seen.sinks is None else seen.sinks
    launch_pipelined(
        tiled.attend_rows[(plan.programs, plan.lanes)],
        (group.k_dim, group.v_dim, kv.dtype, kv.pairs, shape, plan.each), shape.stages,
        q, kv.k, kv.k if kv.v is None else kv.v, *(kv.scales or (out, out)), batch.tables,
        batch.starts, batch.positions, sinks, out, parts, marks, counters,
        *batch.tables.shape[::-1], plan.splits, unit, shrink, seen.window or NO_END,
        seen.chunk or NO_END, HK=group.heads, G=heads // group.heads, GP=plan.padded,
        HEAD_TILES=plan.head_tiles, DK=group.k_dim, DV=group.v_dim, BLOCK=kv.block_size,
        **split_columns(group), SUMS=2 * shape.rows if shape.rows <= 32 else 16, ROWS=shape.rows,
        TOKENS=plan.each, KEYS=tiles.keys, SHORT=tiles.short, NEAR=tiles.near, SPLIT=tiles.split,
        IN_K=group.v_in_k, CAP=seen.softcap > 0, SINKS=seen.sinks is not None,
        BOUND=bool(seen.window or seen.chunk), PAIRS=kv.pairs, APART=plan.lanes > 1,
        DECODE=batch.decode, CODE=CODES.get(kv.dtype, 0), WIDE=not q.is_cuda, PDL=PDL,
        num_warps=shape.warps, maxnreg=shape.registers, launch_pdl=PDL,
    )  # fmt: skip
    return out


def _find_counters(device: torch.device, count: int) -> Tensor:
    """Zeros, and zero again after every launch; launches follow one another.  Older ones stay, as
    captured graphs know them.
    """
    held = _counters.setdefault(device, [])
    if not held or held[-1].numel() < count:
        held.append(torch.zeros(max(count, 1 << 16), dtype=torch.int32, device=device))
    return held[-1]


def _turn(q: Tensor, turns: int) -> Tensor:
    """q rotated as K is, in bfloat16."""
    count, dim = q.shape[0] * q.shape[1], q.shape[2]
    out = torch.empty_like(q, dtype=torch.bfloat16)
    launch: Any = store_codes.turn_rows[(triton.cdiv(count, STORE_HEADS),)]
    padded = triton.next_power_of_2(dim)
    launch(
        q, out, count, D=dim, P=padded, ROWS=STORE_HEADS, TURNS=turns, PDL=PDL, num_warps=4,
        launch_pdl=PDL,
    )  # fmt: skip
    return out
