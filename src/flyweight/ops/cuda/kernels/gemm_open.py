"""Codes of a tile of weights to numbers.

Invariant: `open_half` computes `scale * (value - zero) - min` in float32, operation by operation
as formats define.  Scales a row are not applied here.  Not known here: where products go.

A row's codes of 64 columns are 16 words, or those of 128 columns where two codes share a byte, the
second 64 in the high halves.  Word 4 q + j has columns 16 j + 8 h + 2 q + e in byte 2 h + e: what
one thread of a product of 64 x 16 multiplies is side by side in memory.
"""

# ruff: noqa: RET505 -- what follows a return is compiled too, unless it is in an else

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
WHOLE, TABLE, E2M1, E4M3, E5M2, SIGNED = (tl.constexpr(i) for i in range(6))
NO_LOWS, ZEROS, MINS, FLOAT_ZEROS, PAIRED = (tl.constexpr(i) for i in range(5))


@triton.jit
def read_codes(codes, table, READ: tl.constexpr):
    """Numbers of codes (uint8), float32.  Floats of few bits are moved to the place of float16's
    bits and multiplied by the difference of the two biases.
    """
    if READ == WHOLE:
        return codes.to(tl.float32)
    elif READ == SIGNED:
        return codes.to(tl.int8, bitcast=True).to(tl.float32)
    elif READ == TABLE:
        return tl.load(table + codes.to(tl.int32))
    elif READ == E2M1:
        bits = codes.to(tl.uint16)
        half = ((bits & 7) << 9) | ((bits & 8) << 12)
        return half.to(tl.float16, bitcast=True).to(tl.float32) * 32768.0
    elif READ == E4M3:
        bits = codes.to(tl.uint16)
        half = ((bits & 127) << 7) | ((bits & 128) << 8)
        return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    else:
        return (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_numbers(numbers, rows, u, N, PER: tl.constexpr):
    """What a unit of 128 columns has of each row, [BN,PER]; a row's are side by side."""
    if PER == 1:
        return tl.load(numbers + (u * N + rows))[:, None]
    else:
        return tl.load(numbers + (u * N + rows)[:, None] * PER + tl.arange(0, PER)[None, :])


@triton.jit
def load_pair(numbers, rows, u, N):
    """Two numbers of each row, [BN,1] float32 each."""
    first, second = tl.split(load_numbers(numbers, rows, u, N, 2).to(tl.float32))
    return first[:, None], second[:, None]


@triton.jit
def load_half(numbers, rows, u, N, HALF: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr):
    """Numbers of groups for half of a unit, float32: [BN,1] where it has one, else [BN,64]."""
    PER: tl.constexpr = 128 // GROUP
    COUNT: tl.constexpr = PER // 2
    if COUNT <= 1:
        at = (u * N + rows) * PER + HALF * COUNT
        return tl.load(numbers + at)[:, None].to(tl.float32)
    else:
        at = (u * N + rows)[:, None] * PER + HALF * COUNT + tl.arange(0, COUNT)[None, :]
        each = tl.load(numbers + at).to(tl.float32)
        wide = tl.broadcast_to(each[:, :, None], (BN, COUNT, 64 // COUNT))
        return tl.reshape(wide, (BN, 64))


@triton.jit
def open_half(codes, table, scales, lows, supers, rows, u, N, HALF: tl.constexpr,
              READ: tl.constexpr, ZERO: tl.constexpr, LOWS: tl.constexpr, GROUP: tl.constexpr,
              SUPER: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Codes [BN,64] (uint8) of half of unit `u`, of the rows `rows` [BN] -> numbers, float32."""
    out = read_codes(codes, table, READ)
    if ZERO != 0:
        out = out - ZERO
    if GROUP > 0:
        if LOWS >= PAIRED:
            by, low = load_pair(scales, rows, u, N)
        else:
            by = load_half(scales, rows, u, N, HALF, GROUP, BN)
            low = by
            if LOWS > 0:
                low = load_half(lows, rows, u, N, HALF, GROUP, BN)
        if SUPER > 0:
            top, low_top = load_pair(supers, rows, u // 2, N)
            by = top * by
            low = low_top * low
        if LOWS % 4 == ZEROS or LOWS % 4 == FLOAT_ZEROS:
            out = out - low
        out = by * out
        if LOWS % 4 == MINS:
            out = out - low
    return out


@triton.jit
def order_bytes(words, BN: tl.constexpr):
    """Words [BN,16] (uint32) of four codes -> codes [BN,64] in their order, uint8."""
    first = tl.join((words & 255).to(tl.uint8), ((words >> 8) & 255).to(tl.uint8))
    second = tl.join(((words >> 16) & 255).to(tl.uint8), (words >> 24).to(tl.uint8))
    both = tl.reshape(tl.join(first, second), (BN, 4, 4, 2, 2))  # q, j, e, h
    return tl.reshape(tl.permute(both, (0, 2, 4, 1, 3)), (BN, 64))


@triton.jit
def round_tile(x, EXACT: tl.constexpr):
    """What is multiplied: float32, or bfloat16 rounded to nearest even.  The interpreter has no
    products of bfloat16: there the rounded number stays float32.
    """
    if EXACT:
        return x.to(tl.float32)
    elif INTERPRETED:
        if x.dtype == tl.bfloat16:
            return x.to(tl.float32)
        bits = x.to(tl.float32).to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def dot(w, x, acc, EXACT: tl.constexpr):
    """acc + w [BN,W] times x [BT,W] transposed."""
    if EXACT:
        return tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    else:
        return tl.dot(w, tl.trans(x), acc)
