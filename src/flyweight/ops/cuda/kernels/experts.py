"""Kernels of mixtures: pairs (token, choice) in the order of experts, their products tile by tile,
and the weighted sum.

Invariant: a tile holds pairs of one expert, and a pair's numbers are sums of their own along K: the
tile a pair is in, and its place there, change no bit.  Pair p is choice p % TOP of token p // TOP.
The tables of a call are one int32 tensor: `span` experts of tiles, `span` places of their first
pairs, `span` counts of pairs (0: an unused tile), then the pairs, expert by expert.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm import finish, sum_dense, sum_grouped
from flyweight.ops.cuda.kernels.rows import gate_one


@triton.jit
def sort_kernel(
    ids, tables, pairs, span, EXPERTS: tl.constexpr, BINS: tl.constexpr, BT: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """One program an expert: counts all pairs, then writes its own tiles and pairs.  BINS is more
    than EXPERTS: the last bin takes what is past the end.
    """
    own = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        some = tl.load(ids + at, mask=at < pairs, other=BINS - 1)
        counts += tl.histogram(some, BINS)
    counts = tl.where(bins < EXPERTS, counts, 0)
    tiles = (counts + BT - 1) // BT
    first = tl.sum(tl.where(bins < own, counts, 0))
    tile = tl.sum(tl.where(bins < own, tiles, 0))
    count = tl.sum(tl.where(bins == own, counts, 0))
    more = (count + BT - 1) // BT
    total = tl.sum(tiles)
    for start in range(0, span, 128):
        at = start + tl.arange(0, 128)
        i = at - tile
        mine = (i >= 0) & (i < more)
        left = tl.minimum(count - i * BT, BT)
        tl.store(tables + at, tl.zeros([128], tl.int32) + own, mask=mine)
        tl.store(tables + span + at, first + i * BT, mask=mine)
        tl.store(tables + 2 * span + at, left, mask=mine)
        unused = (at >= total) & (at < span) & (own == 0)
        tl.store(tables + 2 * span + at, tl.zeros([128], tl.int32), mask=unused)
    place = 3 * span + first
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        mine = tl.load(ids + at, mask=at < pairs, other=BINS - 1) == own
        rank = tl.cumsum(mine.to(tl.int32), axis=0)
        tl.store(tables + place + rank - 1, at, mask=mine)
        place += tl.sum(mine.to(tl.int32))


@triton.jit(do_not_specialize=["span", "steps"])
def multiply_pairs(
    x, w, table, scales, lows, supers, super_lows, row_scales, bias, tables, out, N, K, x_stride,
    w_stride, groups, super_groups, span, steps, READ: tl.constexpr, PACKED: tl.constexpr,
    ZERO: tl.constexpr, LOWS: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr,
    BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
    EXACT: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr, TOP: tl.constexpr,
    ACT: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """One tile of pairs times BN rows of its expert's [N,K].  Row p // TOP of x is pair p's.
    With ACT half of the rows are gates, in turns of 8, the others their ups, and N / 2 numbers a
    pair come out.  ALONE: `tables` are the ids of one token, a tile a pair.
    """
    tile = tl.program_id(1)
    lanes = tl.arange(0, BT)
    count = 1
    if not ALONE:
        count = tl.load(tables + 2 * span + tile)
    if count == 0:
        return
    pair = tile + tl.zeros([BT], tl.int32)
    if not ALONE:
        first = tl.load(tables + span + tile)
        pair = tl.load(tables + 3 * span + first + tl.minimum(lanes, count - 1))
    expert = tl.load(tables + tile).to(tl.int64)
    r = tl.arange(0, BN)
    # Rows past the end are the last one again; they are not stored.
    if ACT == "":
        n = tl.program_id(0) * BN + r
        row = tl.minimum(n, N - 1)
    else:  # a thread of the product holds rows r and r + 8
        n = tl.program_id(0) * (BN // 2) + (r // 16) * 8 + r % 8
        row = tl.minimum(n, N // 2 - 1) + ((r // 8) % 2) * (N // 2)
    w += expert * N * w_stride
    scales += expert * groups * N
    lows += expert * groups * N
    supers += expert * super_groups * N
    super_lows += expert * super_groups * N
    x_rows, w_rows = (pair // TOP).to(tl.int64) * x_stride, row * w_stride
    if READ < 0:
        acc = sum_dense(x, w, 0, steps * BK, K, x_rows, w_rows, EVEN, EXACT, BN, BT, BK)
    else:
        acc = sum_grouped(x, w, table, scales, lows, supers, super_lows, 0, steps * BK, K, N,
                          x_rows, w_rows, row, READ, PACKED, ZERO, LOWS, GROUP, SUPER, EVEN,
                          EXACT, BN, BT)  # fmt: skip
    acc = finish(acc, row_scales + expert * N, bias + expert * N, row, row < N, ROWS, BIAS)
    stored = (lanes < count)[None, :]
    place = out + pair.to(tl.int64)[None, :] * (N if ACT == "" else N // 2)
    if ACT == "":
        tl.store(place + n[:, None], acc, mask=stored & (n < N)[:, None])
    else:
        both = tl.permute(tl.reshape(acc, [BN // 16, 2, 8, BT]), [0, 2, 3, 1])
        gate, up = tl.split(both)
        y = tl.reshape(gate_one(gate, up, ACT), [BN // 2, BT]).to(out.dtype.element_ty)
        m = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)
        tl.store(place + m[:, None], y, mask=stored & (m < N // 2)[:, None])


@triton.jit
def sum_pairs(y, weights, out, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """[T,TOP,H] -> [T,H]: the sum by weights, in order."""
    t = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y += t * TOP * width
    total = tl.load(weights + t * TOP) * tl.load(y + cols, mask=cols < width, other=0)
    for j in tl.static_range(1, TOP):
        said = tl.load(y + j * width + cols, mask=cols < width, other=0)
        total += tl.load(weights + t * TOP + j) * said
    tl.store(out + t * width + cols, total, mask=cols < width)
