"""Rows times weights: out[t,n] = sum over k of w[n,k] x[t,k], in tiles [BN,BT].

Invariant: a number of the result is the sum, in order, of `splits` sums, each over `per` steps of
BK along K in order.  `per` and `splits` belong to the weight, so the bits do not depend on T, on BT
or on whether one program walks all splits (WALK) or each has its own and the last to end adds them
(PARTS).
"""

# ruff: noqa: RET505 -- what follows a return is compiled too, unless it is in an else

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_open import dot, open_tile, round_tile

ONE, WALK, PARTS = (tl.constexpr(i) for i in range(3))


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
        else:
            return total * by
    elif BIAS:
        return total + tl.load(bias + n, mask=mask, other=0.0)[:, None]
    else:
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
    else:
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


@triton.jit
def sum_split(s, x, w, table, scales, lows, supers, super_lows, K, N, x_rows, w_rows, n, steps, per,
              READ: tl.constexpr, PACKED: tl.constexpr, ZERO: tl.constexpr, LOWS: tl.constexpr,
              GROUP: tl.constexpr, SUPER: tl.constexpr, EVEN: tl.constexpr, EXACT: tl.constexpr,
              BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Split `s` of a weight; READ < 0: dense."""
    first, end = s * per * BK, tl.minimum((s + 1) * per, steps) * BK
    if READ < 0:
        return sum_dense(x, w, first, end, K, x_rows, w_rows, EVEN, EXACT, BN, BT, BK)
    else:
        return sum_grouped(
            x,
            w,
            table,
            scales,
            lows,
            supers,
            super_lows,
            first,
            end,
            K,
            N,
            x_rows,
            w_rows,
            n,
            READ,
            PACKED,
            ZERO,
            LOWS,
            GROUP,
            SUPER,
            EVEN,
            EXACT,
            BN,
            BT,
        )


@triton.jit(do_not_specialize=["T", "steps", "per", "splits"])
def multiply(x, w, table, scales, lows, supers, super_lows, row_scales, bias, out, parts, ended, T,
             N, K, x_stride, w_stride, out_stride, steps, per, splits, READ: tl.constexpr,
             PACKED: tl.constexpr, ZERO: tl.constexpr, LOWS: tl.constexpr, GROUP: tl.constexpr,
             SUPER: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr,
             MODE: tl.constexpr, EVEN: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr,
             BIAS: tl.constexpr, BAND: tl.constexpr):  # fmt: skip
    """One tile of the result, or of one split of it.  PARTS: sums of splits go to parts
    [splits,T,N]; ended [tiles] counts them, and is 0 again afterwards.
    """
    pid = tl.program_id(0)
    t_blocks, n_blocks = tl.cdiv(T, BT), tl.cdiv(N, BN)
    s = 0
    if MODE == PARTS:
        s = pid // (t_blocks * n_blocks)
        pid = pid % (t_blocks * n_blocks)
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
    total = sum_split(
        s,
        x,
        w,
        table,
        scales,
        lows,
        supers,
        super_lows,
        K,
        N,
        x_rows,
        w_rows,
        n_in,
        steps,
        per,
        READ,
        PACKED,
        ZERO,
        LOWS,
        GROUP,
        SUPER,
        EVEN,
        EXACT,
        BN,
        BT,
        BK,
    )
    inside = (t < T)[None, :] & (n < N)[:, None]
    if MODE == WALK:
        for i in range(1, splits):
            total += sum_split(i, x, w, table, scales, lows, supers, super_lows, K, N, x_rows,
                               w_rows, n_in, steps, per, READ, PACKED, ZERO, LOWS, GROUP, SUPER,
                               EVEN, EXACT, BN, BT, BK)  # fmt: skip
    last = True
    if MODE == PARTS:
        at = parts + (t0.to(tl.int64) * N + n0) + ((t - t0)[None, :] * N + (n - n0)[:, None])
        plane = T.to(tl.int64) * N
        tl.store(at + s * plane, total, mask=inside)
        tl.debug_barrier()  # all of the tile is written before it is counted
        last = tl.atomic_add(ended + pid, 1, sem="acq_rel") == splits - 1
        if last:
            total = tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
            for i in range(1, splits):
                total += tl.load(at + i * plane, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(ended + pid, 0)
    if last:
        total = finish(total, row_scales, bias, n, n < N, ROWS, BIAS)
        out += t0.to(tl.int64) * out_stride + n0
        tl.store(out + ((t - t0)[None, :] * out_stride + (n - n0)[:, None]), total, mask=inside)
