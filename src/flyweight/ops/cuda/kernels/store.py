"""What stands between qkv and attention: head norms, rotation, and K and V into the cache.

Invariant: a program works on one token; what it computes depends on that token's row alone.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.pdl import start_next, wait_inputs
from flyweight.ops.cuda.kernels.store_codes import encode, turn


@triton.jit(do_not_specialize_on_alignment=["positions", "cos", "sin"])
def rotate_angles(positions, inv_freq, cos, sin, half, scale, P: tl.constexpr, PDL: tl.constexpr):
    """Angles in float32 as one product; cos and sin in float64, so that any angle is exact."""
    start_next(PDL)
    wait_inputs(PDL)
    t = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, P)
    angle = tl.load(positions + t).to(tl.float32) * tl.load(inv_freq + i, mask=i < half, other=0.0)
    exact = angle.to(tl.float64)
    tl.store(cos + t * half + i, tl.cos(exact).to(tl.float32) * scale, mask=i < half)
    tl.store(sin + t * half + i, tl.sin(exact).to(tl.float32) * scale, mask=i < half)


@triton.jit
def measure_rows(qkv, sizes, width, q_wide, k_wide, eps, P: tl.constexpr, PDL: tl.constexpr):
    """1 / RMS of a token's whole q and whole k: [T,2]."""
    start_next(PDL)
    wait_inputs(PDL)
    t = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first = tl.where(part == 0, 0, q_wide)
    count = tl.where(part == 0, q_wide, k_wide)
    i = tl.arange(0, P)
    acc = tl.zeros([P], tl.float32)
    for base in range(0, count, P):
        x = tl.load(qkv + t * width + first + base + i, mask=base + i < count, other=0.0)
        acc += x * x
    mean = tl.sum(acc, 0) / count
    tl.store(sizes + t * 2 + part, 1.0 / tl.sqrt(mean + eps))


@triton.jit
def turn_heads(
    x, cos, sin, weights, sizes, t, heads, inside, half, eps, part,
    D: tl.constexpr, P: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """[heads, P] of a token's q or k from `x`, normed and rotated.  NORM: 1 every head by itself,
    2 all heads as one row.
    """
    i = tl.arange(0, P)
    mate = tl.where(i < half, i + half, tl.where(i < 2 * half, i - half, i))
    mask = inside[:, None] & (i < D)[None, :]
    a = tl.load(x + heads[:, None] * D + i[None, :], mask=mask, other=0.0)
    b = tl.load(x + heads[:, None] * D + mate[None, :], mask=mask, other=0.0)
    if NORM == 1:
        size = 1.0 / tl.sqrt(tl.sum(a * a, 1) / D + eps)
        a = a * size[:, None] * tl.load(weights + i, mask=i < D, other=0.0)[None, :]
        b = b * size[:, None] * tl.load(weights + mate, mask=i < D, other=0.0)[None, :]
    if NORM == 2:
        size = tl.load(sizes + t * 2 + part)
        a = a * size * tl.load(weights + heads[:, None] * D + i[None, :], mask=mask, other=0.0)
        b = b * size * tl.load(weights + heads[:, None] * D + mate[None, :], mask=mask, other=0.0)
    angle = t * half + tl.where(i < half, i, i - half)
    c = tl.load(cos + angle, mask=i < 2 * half, other=1.0)
    s = tl.load(sin + angle, mask=i < 2 * half, other=0.0)
    s = tl.where(i < half, -s, s)
    turned = a * c[None, :] + b * s[None, :]
    return tl.where((i < 2 * half)[None, :], turned, a)


@triton.jit(do_not_specialize_on_alignment=["cos", "sin", "slots", "sizes"])
def store_rows(
    qkv, cos, sin, q_weights, k_weights, sizes, slots, q, k, v, k_scales, v_scales,
    width, half, eps,
    HQ: tl.constexpr, HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, PK: tl.constexpr, PV: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, IN_K: tl.constexpr, CODE: tl.constexpr,
    TURNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """HEADS heads of a token: programs of axis 1 take q's, then K's with V's."""
    start_next(PDL)
    wait_inputs(PDL)
    t = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    q_tiles: tl.constexpr = (HQ + HEADS - 1) // HEADS
    x = qkv + t * width
    i = tl.arange(0, PK)
    if tile < q_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)
        turned = turn_heads(
            x, cos, sin, q_weights, sizes, t, heads, heads < HQ, half, eps, 0, DK, PK, Q_NORM
        )
        to_q = q + (t * HQ + heads)[:, None] * DK + i[None, :]
        inside = (heads < HQ)[:, None] & (i < DK)[None, :]
        tl.store(to_q, turned.to(q.dtype.element_ty), mask=inside)
    else:
        head = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        slot = tl.load(slots + t).to(tl.int64)
        at = (slot // BLOCK * HK + head) * BLOCK + slot % BLOCK
        key = turn_heads(
            x + HQ * DK, cos, sin, k_weights, sizes, t, head, head < HK, half, eps, 1, DK, PK,
            K_NORM,
        )  # fmt: skip
        of_k = (head < HK)[:, None] & (i < DK)[None, :]
        if CODE:
            k_codes, k_scale = encode(turn(key, HEADS, PK, TURNS), CODE)
            tl.store(k + at[:, None] * DK + i[None, :], k_codes, mask=of_k)
            tl.store(k_scales + at, k_scale * (1.0 / (1 << TURNS)), mask=head < HK)
        else:
            tl.store(k + at[:, None] * DK + i[None, :], key.to(k.dtype.element_ty), mask=of_k)
        if not IN_K:
            j = tl.arange(0, PV)
            of_v = (head < HK)[:, None] & (j < DV)[None, :]
            values = x + (HQ + HK) * DK + head[:, None] * DV + j[None, :]
            value = tl.load(values, mask=of_v, other=0.0)
            to_v = v + at[:, None] * DV + j[None, :]
            if CODE:
                v_codes, v_scale = encode(value, CODE)
                tl.store(to_v, v_codes, mask=of_v)
                tl.store(v_scales + at, v_scale, mask=head < HK)
            else:
                tl.store(to_v, value.to(v.dtype.element_ty), mask=of_v)
