"""Rows times weights: out[t,n] = sum over k of w[n,k] x[t,k], in tiles [BN,BT].

Invariant: a number of the result is the sum, in order, of SPLITS sums, each over `per` steps of BK
along K in order.  `per` and SPLITS belong to the weight, so the bits do not depend on T, on BT or
on whether one program walks all splits (`WALK`) or each has its own and `reduce_splits` adds them.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_open import dot, open_tile, round_tile


@triton.jit
def finish(total, row_scales, bias, n, mask, ROWS: tl.constexpr, BIAS: tl.constexpr):
    """Scales of rows, then biases; `total` has rows along its first axis."""
    if ROWS:
        by = tl.load(row_scales + n, mask=mask, other=0.0)[:, None]
        if BIAS:
            return tl.fma(
                total,
                by + tl.zeros_like(total),
                tl.load(bias + n, mask=mask, other=0.0)[:, None] + tl.zeros_like(total),
            )
        return total * by
    if BIAS:
        return total + tl.load(bias + n, mask=mask, other=0.0)[:, None]
    return total


@triton.jit
def sum_dense(x, w, k_first, k_end, K, x_rows, w_rows, EVEN: tl.constexpr, EXACT: tl.constexpr,
              BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """One split of a dense weight."""
    acc = tl.zeros((BN, BT), tl.float32)
    for k0 in range(k_first, k_end, BK):
        k = k0 + tl.arange(0, BK)
        if EVEN:
            some = tl.load(w + w_rows[:, None] + k[None, :])
            seen = tl.load(x + x_rows[:, None] + k[None, :])
        else:
            inside = (k < K)[None, :]
            some = tl.load(w + w_rows[:, None] + k[None, :], mask=inside, other=0.0)
            seen = tl.load(x + x_rows[:, None] + k[None, :], mask=inside, other=0.0)
        acc = dot(round_tile(some, EXACT), round_tile(seen, EXACT), acc, EXACT)
    return acc


@triton.jit
def load_rows(x, x_rows, k, K, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(x + x_rows[:, None] + k[None, :])
    return tl.load(x + x_rows[:, None] + k[None, :], mask=(k < K)[None, :], other=0.0)


@triton.jit
def sum_grouped(x, w, table, scales, lows, supers, super_lows, k_first, k_end, K, N, x_rows,
                w_rows, n, READ: tl.constexpr, PACKED: tl.constexpr, ZERO: tl.constexpr,
                LOWS: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr, EVEN: tl.constexpr,
                EXACT: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """One split of a weight of codes, 128 along K a step, in two halves."""
    acc = tl.zeros((BN, BT), tl.float32)
    half = tl.arange(0, 64)
    for k0 in range(k_first, k_end, 128):
        if PACKED:
            pair = tl.load(w + w_rows[:, None] + (k0 // 2 + half)[None, :])
            first, second = pair & 15, pair >> 4
        else:
            first = tl.load(w + w_rows[:, None] + (k0 + half)[None, :])
            second = tl.load(w + w_rows[:, None] + (k0 + 64 + half)[None, :])
        seen = load_rows(x, x_rows, k0 + half, K, EVEN)
        more = load_rows(x, x_rows, k0 + 64 + half, K, EVEN)
        some = open_tile(first, table, scales, lows, supers, super_lows, n, k0, N, READ, ZERO,
                         LOWS, GROUP, SUPER, BN, 64)  # fmt: skip
        acc = dot(round_tile(some, EXACT), round_tile(seen, EXACT), acc, EXACT)
        some = open_tile(second, table, scales, lows, supers, super_lows, n, k0 + 64, N, READ,
                         ZERO, LOWS, GROUP, SUPER, BN, 64)  # fmt: skip
        acc = dot(round_tile(some, EXACT), round_tile(more, EXACT), acc, EXACT)
    return acc


@triton.jit(do_not_specialize=["T", "steps", "per"])
def multiply(x, w, table, scales, lows, supers, super_lows, row_scales, bias, out, T, N, K,
             x_stride, w_stride, out_stride, split_stride, steps, per, READ: tl.constexpr,
             PACKED: tl.constexpr, ZERO: tl.constexpr, LOWS: tl.constexpr, GROUP: tl.constexpr,
             SUPER: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
             SPLITS: tl.constexpr, WALK: tl.constexpr, EVEN: tl.constexpr, EXACT: tl.constexpr,
             ROWS: tl.constexpr, BIAS: tl.constexpr, BAND: tl.constexpr):  # fmt: skip
    """One tile of the result, or of one split of it.  READ < 0: a dense weight."""
    pid = tl.program_id(0)
    t_blocks, n_blocks = tl.cdiv(T, BT), tl.cdiv(N, BN)
    band = pid // (BAND * n_blocks)
    height = tl.minimum(t_blocks - band * BAND, BAND)
    inner = pid % (BAND * n_blocks)
    t0 = (band * BAND + inner % height) * BT
    n0 = (inner // height) * BN
    # Rows past the end read the last one: no masks; they are not stored.
    t, n = t0 + tl.arange(0, BT), n0 + tl.arange(0, BN)
    t_in, n_in = tl.minimum(t, T - 1), tl.minimum(n, N - 1)
    x += t0.to(tl.int64) * x_stride
    w += n0.to(tl.int64) * w_stride
    x_rows, w_rows = (t_in - t0) * x_stride, (n_in - n0) * w_stride
    if WALK:
        total = tl.zeros((BN, BT), tl.float32)
        for s in range(SPLITS):
            k_first, k_end = s * per * BK, tl.minimum((s + 1) * per, steps) * BK
            if READ < 0:
                acc = sum_dense(x, w, k_first, k_end, K, x_rows, w_rows, EVEN, EXACT, BN, BT, BK)
            else:
                acc = sum_grouped(x, w, table, scales, lows, supers, super_lows, k_first, k_end,
                                  K, N, x_rows, w_rows, n_in, READ, PACKED, ZERO, LOWS,
                                  GROUP, SUPER, EVEN, EXACT, BN, BT)  # fmt: skip
            total += acc
        total = finish(total, row_scales, bias, n, n < N, ROWS, BIAS)
    else:
        s = tl.program_id(1)
        k_first, k_end = s * per * BK, tl.minimum((s + 1) * per, steps) * BK
        if READ < 0:
            total = sum_dense(x, w, k_first, k_end, K, x_rows, w_rows, EVEN, EXACT, BN, BT, BK)
        else:
            total = sum_grouped(x, w, table, scales, lows, supers, super_lows, k_first, k_end, K,
                                N, x_rows, w_rows, n_in, READ, PACKED, ZERO, LOWS, GROUP, SUPER,
                                EVEN, EXACT, BN, BT)  # fmt: skip
        out += s.to(tl.int64) * split_stride
    out += t0.to(tl.int64) * out_stride + n0
    at = (t - t0)[None, :] * out_stride + (n - n0)[:, None]
    tl.store(out + at, total, mask=(t < T)[None, :] & (n < N)[:, None])


@triton.jit(do_not_specialize=["T"])
def reduce_splits(parts, row_scales, bias, out, T, N, out_stride, SPLITS: tl.constexpr,
                  ROWS: tl.constexpr, BIAS: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """out[t,n] = the sum of parts [SPLITS,T,N] in order, finished."""
    t = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = n < N
    total = tl.zeros((BN,), tl.float32)
    for s in tl.static_range(SPLITS):
        total += tl.load(parts + (s * T + t) * N + n, mask=inside, other=0.0)
    total = finish(total[:, None], row_scales, bias, n, inside, ROWS, BIAS)
    tl.store(out + t * out_stride + n[:, None], total, mask=inside[:, None])
