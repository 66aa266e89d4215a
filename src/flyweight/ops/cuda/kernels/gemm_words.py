"""Codes of a tile of weights to bfloat16, two at a time in a register.

Invariant: differences of whole codes and zero points are exact; scales and minima are rounded to
bfloat16, and so is the result: an error of 2^-8 of |scale * code| + |minimum| for each of the two.
The order of words is that of gemm_open.py.
"""

# ruff: noqa: RET505 -- what follows a return is compiled too, unless it is in an else

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_codes import (
    look_up,
    read_small,
    scale_above,
    scale_pair,
    scale_whole,
)
from flyweight.ops.cuda.kernels.gemm_open import (
    E2M1,
    MINS,
    PAIRED,
    TABLE,
    ZEROS,
    load_numbers,
    load_pair,
)


@triton.jit
def order_pairs(words, BN: tl.constexpr):
    """Words [BN,16,2] of two bfloat16 -> [BN,64] in their order."""
    bits = words.to(tl.uint32, bitcast=True)
    first = (bits & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    second = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    both = tl.reshape(tl.join(first, second), (BN, 4, 4, 2, 2))  # q, j, h, e
    return tl.reshape(tl.permute(both, (0, 2, 3, 1, 4)), (BN, 64))


@triton.jit
def double(x):
    """float32 -> a word of that number twice, in bfloat16."""
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $1, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def take_half(each, HALF: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr):
    """What half of a unit has of the numbers [BN,PER] of its groups, [BN,PER/2]; [BN,1] of one."""
    if PER == 1:
        return each
    elif PER == 2:
        first, second = tl.split(each)
        return second[:, None] if HALF else first[:, None]
    else:
        first, second = tl.split(tl.permute(tl.reshape(each, (BN, 2, PER // 2)), (0, 2, 1)))
        return second if HALF else first


@triton.jit
def spread(each, HALF: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr):
    """Numbers of groups [BN,PER], float32 -> of each word of a half, in bfloat16, twice."""
    mine = double(take_half(each, HALF, BN, PER))
    if PER <= 2:
        return mine
    else:
        J: tl.constexpr = PER // 2
        wide = tl.broadcast_to(tl.reshape(mine, (BN, 1, J, 1)), (BN, 4, J, 4 // J))
        return tl.reshape(wide, (BN, 16))


@triton.jit
def load_unit(scales, lows, supers, rows, u, N, LOWS: tl.constexpr, SUPER: tl.constexpr,
              PER: tl.constexpr):  # fmt: skip
    """Scales and low numbers of a unit, float32 [BN,PER] each; [BN,1] where they are paired."""
    if LOWS >= PAIRED:
        by, low = load_pair(scales, rows, u, N)
    else:
        by = load_numbers(scales, rows, u, N, PER).to(tl.float32)
        low = by
        if LOWS > 0:
            low = load_numbers(lows, rows, u, N, PER).to(tl.float32)
    if SUPER > 0:
        top, low_top = load_pair(supers, rows, u // 2, N)
        by = top * by
        low = low_top * low
    return by, low


@triton.jit
def open_words(words, table, by, low, HALF: tl.constexpr, READ: tl.constexpr, ZERO: tl.constexpr,
               LOWS: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr):  # fmt: skip
    """Half of a unit of codes of 4 bits, words [BN,16], with what `load_unit` says -> [BN,64]
    bfloat16.
    """
    by = spread(by, HALF, BN, PER)
    if READ == E2M1:
        a, b = read_small(words, HALF)
        a, b = scale_pair(a, by), scale_pair(b, by)
    elif READ == TABLE:
        a, b = look_up(words, table, HALF)
        a, b = scale_pair(a, by), scale_pair(b, by)
    else:
        OFFSET: tl.constexpr = (0xC300 + ZERO) * 0x10001 - (1 << 32)  # -128 - ZERO, twice
        offset = tl.full((1, 1), OFFSET, tl.int32)
        if LOWS % 4 == MINS:
            a, b = scale_above(words, offset, by, spread(-low, HALF, BN, PER), HALF)
        else:
            if LOWS % 4 == ZEROS:
                offset = spread(-128.0 - low, HALF, BN, PER)
            a, b = scale_whole(words, offset, by, HALF)
    return order_pairs(tl.join(a, b), BN)
