"""Rows of a table of weights, exactly as their format defines them."""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_open import open_half


@triton.jit
def embed_dense(table, ids, out, K, BK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + t).to(tl.int64)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    some = tl.load(table + row * K + k, mask=k < K)
    tl.store(out + t * K + k, some.to(tl.float32), mask=k < K)


@triton.jit
def embed_grouped(codes, table, scales, lows, supers, super_lows, row_scales, columns, ids, out,
                  N, K, w_stride, READ: tl.constexpr, PACKED: tl.constexpr, ZERO: tl.constexpr,
                  LOWS: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr,
                  ROWS: tl.constexpr, ORDERED: tl.constexpr):  # fmt: skip
    """One unit of 128 of a row; `ROWS`: scales of rows; `ORDERED`: code k is element columns[k]."""
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + t)
    u = tl.program_id(1)
    rows = row + tl.zeros((1,), tl.int32)
    half = tl.arange(0, 64)[None, :]
    place = (half % 8 // 2) * 16 + (half // 16) * 4 + (half // 8 % 2) * 2 + half % 2
    at = codes + row.to(tl.int64) * w_stride
    for i in tl.static_range(2):
        k = u * 128 + 64 * i + half
        if PACKED:
            some = (tl.load(at + u * 64 + place) >> (4 * i)) & 15
        else:
            some = tl.load(at + u * 128 + 64 * i + place)
        got = open_half(some, table, scales, lows, supers, rows, u, N, i, READ, ZERO,
                        LOWS, GROUP, SUPER, 1)  # fmt: skip
        if ROWS:
            got = tl.load(row_scales + row) * got
        where = k
        if ORDERED:
            where = tl.load(columns + k, mask=k < K, other=0)
        tl.store(out + t * K + where, got, mask=k < K)
