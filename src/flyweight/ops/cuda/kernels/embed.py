"""Rows of a table of weights, exactly as their format defines them."""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_open import open_tile


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
    k0 = tl.program_id(1) * 128
    rows = row + tl.zeros((1,), tl.int32)
    half = tl.arange(0, 64)[None, :]
    at = codes + row.to(tl.int64) * w_stride
    for i in tl.static_range(2):
        first = k0 + 64 * i
        k = first + half
        if PACKED:  # noqa: SIM108
            some = (tl.load(at + k0 // 2 + half) >> (4 * i)) & 15
        else:
            some = tl.load(at + k)
        got = open_tile(some, table, scales, lows, supers, super_lows, rows, first, N, READ, ZERO,
                        LOWS, GROUP, SUPER, 1, 64)  # fmt: skip
        if ROWS:
            got = tl.load(row_scales + row) * got
        where = k
        if ORDERED:
            where = tl.load(columns + k, mask=k < K, other=0)
        tl.store(out + t * K + where, got, mask=k < K)
