"""Codes of a tile of weights to bfloat16, two at a time in a register.

Invariant: `open_words` gives what `gemm_open.open_half` gives, rounded to bfloat16: differences of
whole codes and zero points are exact, and a scale is the sum of two bfloat16 numbers, so that one
rounding is left; minima are rounded by themselves.  The order of words is that of gemm_open.py.
"""

# ruff: noqa: RET505 -- what follows a return is compiled too, unless it is in an else

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_codes import split_codes, split_exact
from flyweight.ops.cuda.kernels.gemm_open import MINS, PAIRED, WHOLE, ZEROS, load_numbers, load_pair


@triton.jit
def order_pairs(words, BN: tl.constexpr):
    """Words [BN,16,2] of two bfloat16 -> [BN,64] in their order."""
    bits = words.to(tl.uint32, bitcast=True)
    first = (bits & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    second = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    both = tl.reshape(tl.join(first, second), (BN, 4, 4, 2, 2))  # q, j, h, e
    return tl.reshape(tl.permute(both, (0, 2, 3, 1, 4)), (BN, 64))


@triton.jit
def order_quarters(words, BN: tl.constexpr):
    """Words [BN,16,2] of two bfloat16 -> their columns 0 to 31 and 32 to 63, [BN,32] each."""
    parts = tl.permute(tl.reshape(words, (BN, 4, 2, 2, 2)), (0, 1, 3, 4, 2))  # q, j % 2, h, j / 2
    first, second = tl.split(parts)
    return order_quarter(first, BN), order_quarter(second, BN)


@triton.jit
def order_quarter(words, BN: tl.constexpr):
    bits = words.to(tl.uint32, bitcast=True)
    first = (bits & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    second = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    both = tl.join(first, second)  # q, j, h, e
    return tl.reshape(tl.permute(both, (0, 2, 3, 1, 4)), (BN, 32))


@triton.jit
def find_offset(low, HALF: tl.constexpr, ZERO: tl.constexpr, LOWS: tl.constexpr, BN: tl.constexpr,
                PER: tl.constexpr):  # fmt: skip
    """-128 - zero point of each word of half of a unit, in bfloat16, twice."""
    OFFSET: tl.constexpr = (0xC300 + ZERO) * 0x10001 - (1 << 32)
    if LOWS % 4 == ZEROS:
        zeros = double(-128.0 - take_half(low, HALF, BN, PER))
        if PER <= 2:
            return zeros
        else:
            wide = tl.broadcast_to(tl.reshape(zeros, (BN, 1, 2, 1)), (BN, 4, 2, 2))
            return tl.reshape(wide, (BN, 16))
    else:
        return tl.full((1, 1), OFFSET, tl.int32)


@triton.jit
def open_codes(words, table, low, HALF: tl.constexpr, READ: tl.constexpr, ZERO: tl.constexpr,
               LOWS: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr):  # fmt: skip
    """Half of a unit of codes of 4 bits less their zero points, words [BN,16,2]: exact."""
    offset = find_offset(low, HALF, ZERO, LOWS, BN, PER)
    return split_exact(words, table, offset, HALF, READ)


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
def spread(each, BN: tl.constexpr, J: tl.constexpr):
    """Words of the groups of a half [BN,J], one for each word of `split_codes`."""
    if J == 1:
        return tl.reshape(each, (BN, 1, 1))
    else:
        wide = tl.broadcast_to(tl.reshape(each, (BN, 1, J, 1, 1)), (BN, 4, J, 4 // J, 2))
        return tl.reshape(wide, (BN, 16, 2))


@triton.jit
def scale_words(codes, offset, high, low, least, LOWS: tl.constexpr, READ: tl.constexpr):
    """(code + offset) * (high + low) + least, two at a time: the sum is exact and high + low is the
    scale, so that the result is rounded once where there are no minima.
    """
    if READ != WHOLE:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 x, none;
            mov.b32 none, 0x80008000;
            fma.rn.bf16x2 x, $1, $3, none;
            fma.rn.bf16x2 $0, $1, $2, x;
            }""",
            "=r,r,r,r", [codes, high, low], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    elif LOWS == MINS:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 code, one, x;
            mov.b32 one, 0x3F803F80;
            fma.rn.bf16x2 code, $1, one, $2;
            fma.rn.bf16x2 x, code, $4, $5;
            fma.rn.bf16x2 $0, code, $3, x;
            }""",
            "=r,r,r,r,r,r", [codes, offset, high, low, least], dtype=tl.int32, is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 code, one, none, x;
            mov.b32 one, 0x3F803F80;
            mov.b32 none, 0x80008000;
            fma.rn.bf16x2 code, $1, one, $2;
            fma.rn.bf16x2 x, code, $4, none;
            fma.rn.bf16x2 $0, code, $3, x;
            }""",
            "=r,r,r,r,r", [codes, offset, high, low], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip


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
    J: tl.constexpr = PER // 2 if PER > 1 else 1
    by = take_half(by, HALF, BN, PER)
    high = double(by)
    fine = spread(double(by - (high & -0x10000).to(tl.float32, bitcast=True)), BN, J)
    high = spread(high, BN, J)
    OFFSET: tl.constexpr = (0xC300 + ZERO) * 0x10001 - (1 << 32)  # -128 - ZERO in bfloat16, twice
    offset = tl.full((1, 1, 1), OFFSET, tl.int32)
    if LOWS % 4 == ZEROS:
        offset = spread(double(-128.0 - take_half(low, HALF, BN, PER)), BN, J)
    rest = offset
    if LOWS % 4 == MINS:
        rest = spread(double(-take_half(low, HALF, BN, PER)), BN, J)
    codes = split_codes(words, table, HALF, READ)
    return order_pairs(scale_words(codes, offset, high, fine, rest, LOWS % 4, READ), BN)
