"""Codes of a tile of weights to numbers, in float32, operation by operation as formats define.

Invariant: `open_tile` computes `scale * (value - zero) - min` in that order; scales a row are not
applied here.  Not known here: where products go.
"""

# ruff: noqa: RET505 -- what follows a return is compiled too, unless it is in an else

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
WHOLE, TABLE, E2M1, E4M3, E5M2 = (tl.constexpr(i) for i in range(5))
NO_LOWS, ZEROS, MINS = (tl.constexpr(i) for i in range(3))


@triton.jit
def read_codes(codes, table, READ: tl.constexpr):
    """Numbers of codes, one an element, float32.  Floats of few bits are moved to the place of
    float16's bits and multiplied by the difference of the two biases.
    """
    if READ == WHOLE:
        return codes.to(tl.float32)
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
def load_groups(numbers, supers, rows, k, N, GROUP: tl.constexpr, SUPER: tl.constexpr,
                BN: tl.constexpr, W: tl.constexpr):  # fmt: skip
    """Numbers of the groups of the codes [BN,W] from column k on, float32: [BN,1] where a row has
    one for all of them, else [BN,W].
    """
    if GROUP >= W:
        own = tl.load(numbers + (k // GROUP) * N + rows).to(tl.float32)
        if SUPER > 0:
            own = tl.load(supers + (k // SUPER) * N + rows).to(tl.float32) * own
        return own[:, None]
    else:
        COUNT: tl.constexpr = W // GROUP
        groups = k // GROUP + tl.arange(0, COUNT)
        each = tl.load(numbers + groups[None, :] * N + rows[:, None]).to(tl.float32)
        if SUPER > 0:
            top = tl.load(supers + (k // SUPER) * N + rows).to(tl.float32)
            each = top[:, None] * each
        wide = tl.broadcast_to(each[:, :, None], (BN, COUNT, GROUP))
        return tl.reshape(wide, (BN, W))


@triton.jit
def open_tile(codes, table, scales, lows, supers, super_lows, rows, k, N, READ: tl.constexpr,
              ZERO: tl.constexpr, LOWS: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr,
              BN: tl.constexpr, W: tl.constexpr):  # fmt: skip
    """Codes [BN,W] of the rows `rows` [BN] from column k on -> numbers, float32."""
    out = read_codes(codes, table, READ)
    if ZERO != 0:
        out = out - ZERO
    if LOWS == ZEROS:
        out = out - load_groups(lows, lows, rows, k, N, GROUP, 0, BN, W)
    if GROUP > 0:
        out = load_groups(scales, supers, rows, k, N, GROUP, SUPER, BN, W) * out
    if LOWS == MINS:
        out = out - load_groups(lows, super_lows, rows, k, N, GROUP, SUPER, BN, W)
    return out


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
