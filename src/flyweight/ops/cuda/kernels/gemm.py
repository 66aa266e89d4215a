"""Rows times weights: out[t,n] = sum over k of w[n,k] x[t,k], in tiles [BN,BT].

Invariant: a number of the result is the sum, in order, of `splits` sums, each over `per` steps of
BK along K in order.  `per` and `splits` belong to the weight, so the bits do not depend on T, on BT
or on whether one program walks all splits (WALK) or each has its own and the last to end adds them
(PARTS).
"""

# ruff: noqa: RET505 -- what follows a return is compiled too, unless it is in an else

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_codes import read_floats
from flyweight.ops.cuda.kernels.gemm_open import (
    E2M1,
    E4M3,
    E5M2,
    FLOAT_ZEROS,
    INTERPRETED,
    dot,
    open_half,
    order_bytes,
    round_tile,
)
from flyweight.ops.cuda.kernels.gemm_words import (
    load_unit,
    open_words,
    order_pairs,
)
from flyweight.ops.cuda.kernels.pdl import start_next, wait_inputs

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
    # A way around the loop would define sums of products under way; ptxas then waits for each one.
    tl.assume(k_first < k_end)
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
    # Codes less zero points are exact in bfloat16 where those are whole.
    PAIRS: tl.constexpr = (
        PACKED and READ <= E2M1 and GROUP > 0 and LOWS % 4 != FLOAT_ZEROS
        and not EXACT and not INTERPRETED
    )  # fmt: skip
    FLOATS: tl.constexpr = (
        (READ == E4M3 or READ == E5M2)  # noqa: SIM109
        and GROUP == 0
        and not EXACT
        and not INTERPRETED
    )
    WORDS: tl.constexpr = 16 if PACKED else 32
    acc = tl.zeros((BN, BT), tl.float32)
    half, sixteen = tl.arange(0, 64), tl.arange(0, 16)
    first, end = k_first // 128, k_end // 128
    tl.assume(first < end)  # as in sum_dense
    for u in range(first, end):
        words = tl.load(w + w_rows[:, None] + (u * WORDS + sixteen)[None, :])
        more = words
        if not PACKED:
            more = tl.load(w + w_rows[:, None] + (u * WORDS + 16 + sixteen)[None, :])
        seen = load_rows(x, x_rows, u * 128 + half, K, EVEN)
        then = load_rows(x, x_rows, u * 128 + 64 + half, K, EVEN)
        if PAIRS:
            by, low = load_unit(scales, lows, supers, n, u, N, LOWS, SUPER, 128 // GROUP)
            some = open_words(words, table, by, low, 0, READ, ZERO, LOWS, BN, 128 // GROUP)
            others = open_words(words, table, by, low, 1, READ, ZERO, LOWS, BN, 128 // GROUP)
        elif FLOATS:
            some = order_pairs(read_floats(words, READ), BN)
            others = order_pairs(read_floats(more, READ), BN)
        else:
            words, more = words.to(tl.uint32, bitcast=True), more.to(tl.uint32, bitcast=True)
            if PACKED:
                words, more = words & 0x0F0F0F0F, (more >> 4) & 0x0F0F0F0F
            some = open_half(order_bytes(words, BN), table, scales, lows, supers, n, u, N, 0, READ,
                             ZERO, LOWS, GROUP, SUPER, BN)  # fmt: skip
            others = open_half(order_bytes(more, BN), table, scales, lows, supers, n, u, N, 1, READ,
                               ZERO, LOWS, GROUP, SUPER, BN)  # fmt: skip
            some, others = round_tile(some, EXACT), round_tile(others, EXACT)
        acc = dot(some, round_tile(seen, EXACT), acc, EXACT)
        acc = dot(others, round_tile(then, EXACT), acc, EXACT)
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
        return sum_grouped(x, w, table, scales, lows, supers, super_lows, first, end, K, N, x_rows,
                           w_rows, n, READ, PACKED, ZERO, LOWS, GROUP, SUPER, EVEN, EXACT, BN,
                           BT)  # fmt: skip


@triton.jit
def fetch_ahead(w, rows, first, stride, LINES: tl.constexpr):
    """Has LINES of 128 bytes of each row of a tile of weights, from `first` on, brought to L2."""
    LINE: tl.constexpr = 1024 // w.dtype.element_ty.primitive_bitwidth
    at = tl.minimum(first + tl.arange(0, LINES) * LINE, stride - 1)
    lines = (w + rows[:, None] + at[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [lines], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["T", "steps", "per", "splits"])
def multiply(x, w, table, scales, lows, supers, super_lows, row_scales, bias, out, parts, ended, T,
             N, K, x_stride, w_stride, out_stride, x_head, w_head, groups, supers_each, out_head,
             steps, per, splits, READ: tl.constexpr, PACKED: tl.constexpr, ZERO: tl.constexpr,
             LOWS: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr, BN: tl.constexpr,
             BT: tl.constexpr, BK: tl.constexpr, MODE: tl.constexpr, EVEN: tl.constexpr,
             EXACT: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr, BAND: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    """One tile of the result, or of one split of it.  PARTS: sums of splits go to parts
    [splits,T,N]; ended [tiles] counts them, and is 0 again afterwards.  The second axis of programs
    are heads: pointers move by `x_head`, `w_head`, ... numbers for each.
    """
    start_next(PDL)
    pid, h = tl.program_id(0), tl.program_id(1).to(tl.int64)
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
    x += t0.to(tl.int64) * x_stride + h * x_head
    w += n0.to(tl.int64) * w_stride + h * w_head
    scales += h * groups * N
    lows += h * groups * N
    supers += h * supers_each * N
    row_scales += h * N
    bias += h * N
    out += t0.to(tl.int64) * out_stride + n0 + h * out_head
    x_rows, w_rows = (t_in - t0) * x_stride, (n_in - n0) * w_stride
    if PDL and BT <= 64:
        WIDE: tl.constexpr = 1 if READ < 0 else 8 if PACKED else 4  # codes an element of w
        fetch_ahead(w, w_rows, s * per * (BK // WIDE), w_stride, 4 if READ < 0 else 2)
    wait_inputs(PDL)
    total = sum_split(s, x, w, table, scales, lows, supers, super_lows, K, N, x_rows, w_rows, n_in,
                      steps, per, READ, PACKED, ZERO, LOWS, GROUP, SUPER, EVEN, EXACT, BN, BT,
                      BK)  # fmt: skip
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
        tl.store(out + ((t - t0)[None, :] * out_stride + (n - n0)[:, None]), total, mask=inside)
