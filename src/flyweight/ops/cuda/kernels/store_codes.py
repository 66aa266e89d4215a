"""K and V as codes with a scale: how they are made, and opened again.

Invariant: codes and scales are those of ops/reference_kv.py, bit for bit: one float32 operation
after the other.  Opened codes are the bfloat16 numbers they represent, exactly.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.pdl import start_next, wait_inputs

# What K and V are stored as; 0 is no code.
INT8 = tl.constexpr(1)
E4M3 = tl.constexpr(2)
E5M2 = tl.constexpr(3)
OPEN_INT8 = tl.constexpr("""{
    .reg .b32 a, b, c, d, one;
    mov.b32 one, 0x3f803f80;
    prmt.b32 a, $2, 0, 0x4140;
    prmt.b32 b, $2, 0, 0x4342;
    lop3.b32 c, a, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 d, a, 0x00800080, 0xc300c300, 0xea;
    fma.rn.bf16x2 $0, c, one, d;
    lop3.b32 c, b, 0x007f007f, 0x43004300, 0xea;
    lop3.b32 d, b, 0x00800080, 0xc300c300, 0xea;
    fma.rn.bf16x2 $1, c, one, d;
}""")  # (128 + low bits) - 128, or - 256 with the sign
OPEN_E4M3 = tl.constexpr("""{
    .reg .b32 a, b, c, d, up, none;
    mov.b32 up, 0x7b807b80;
    mov.b32 none, 0x80008000;
    prmt.b32 a, $2, 0, 0x1404;
    prmt.b32 b, $2, 0, 0x3424;
    shr.u32 c, a, 4;
    and.b32 c, c, 0x07f007f0;
    lop3.b32 c, a, 0x80008000, c, 0xea;
    fma.rn.bf16x2 $0, c, up, none;
    shr.u32 d, b, 4;
    and.b32 d, d, 0x07f007f0;
    lop3.b32 d, b, 0x80008000, d, 0xea;
    fma.rn.bf16x2 $1, d, up, none;
}""")  # exponent and fraction moved to bfloat16's, times 2**120
OPEN_E5M2 = tl.constexpr("""{
    .reg .b32 a, b, c, d, up, none;
    mov.b32 up, 0x77807780;
    mov.b32 none, 0x80008000;
    prmt.b32 a, $2, 0, 0x1404;
    prmt.b32 b, $2, 0, 0x3424;
    shr.u32 c, a, 3;
    and.b32 c, c, 0x0fe00fe0;
    lop3.b32 c, a, 0x80008000, c, 0xea;
    fma.rn.bf16x2 $0, c, up, none;
    shr.u32 d, b, 3;
    and.b32 d, d, 0x0fe00fe0;
    lop3.b32 d, b, 0x80008000, d, 0xea;
    fma.rn.bf16x2 $1, d, up, none;
}""")  # the same, times 2**112
WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2**23: added and taken off it rounds to nearest even


@triton.jit
def turn(x, ROWS: tl.constexpr, P: tl.constexpr, TURNS: tl.constexpr):
    """[ROWS, P]: every 2**TURNS elements times the Hadamard matrix of that size."""
    for j in tl.static_range(TURNS):
        pairs = tl.permute(tl.reshape(x, (ROWS, P // (2 << j), 2, 1 << j)), (0, 1, 3, 2))
        a, b = tl.split(pairs)
        pairs = tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2))
        x = tl.reshape(pairs, (ROWS, P))
    return x


@triton.jit
def encode(x, CODE: tl.constexpr):
    """[rows, P] -> codes as int8 [rows, P] and scales [rows]; elements beyond a row are zero."""
    top: tl.constexpr = 127.0 if CODE == INT8 else 448.0 if CODE == E4M3 else 57344.0
    amax = tl.max(tl.abs(x), 1)
    finite = (tl.max(((x - x) != 0).to(tl.int32), 1) == 0) & (amax < float("inf"))
    factor = tl.div_rn(top + tl.zeros_like(amax), amax)
    usable = finite & (factor < float("inf")) & (factor > 0)
    scale = tl.where(usable, tl.div_rn(amax, top + tl.zeros_like(amax)), 0.0)
    scale = tl.where(finite, scale, float("nan"))
    y = tl.where(usable[:, None], x, 0.0) * tl.where(usable, factor, 0.0)[:, None]
    if CODE == INT8:
        codes = ((y + WHOLE) - WHOLE).to(tl.int32)
    else:
        codes = round_float(y, CODE)
    return codes.to(tl.int8), scale


@triton.jit
def round_float(y, CODE: tl.constexpr):
    """The code of the nearest float of E4M3 or E5M2, ties to even, without subnormals."""
    bits = y.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    if CODE == E4M3:
        code = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        least = tl.where(tl.abs(y) < 0.0078125, 0, 8)  # nothing or 2**-6
        code = tl.where(tl.abs(y) < 0.015625, least, code)
    else:
        code = ((size + 0xFFFFF + ((size >> 21) & 1)) >> 21) - (112 << 2)
        least = tl.where(tl.abs(y) < 0.000030517578125, 0, 4)  # nothing or 2**-14
        code = tl.where(tl.abs(y) < 0.00006103515625, least, code)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def open_codes(x, CODE: tl.constexpr, WIDE: tl.constexpr):
    """int8 codes as bfloat16, four at a time; in float32 (WIDE) one by one."""
    if WIDE:
        code = x.to(tl.int32)
        if CODE == INT8:
            return code.to(tl.float32)
        size: tl.constexpr = 20 if CODE == E4M3 else 21
        up: tl.constexpr = 120 << 23 if CODE == E4M3 else 112 << 23
        bits = tl.where((code & 127) == 0, 0, ((code & 127) << size) + up)
        number = bits.to(tl.float32, bitcast=True)
        return tl.where(code < 0, -number, number)
    asm: tl.constexpr = OPEN_INT8 if CODE == INT8 else OPEN_E4M3 if CODE == E4M3 else OPEN_E5M2
    return tl.inline_asm_elementwise(asm, "=r,=r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=4)


@triton.jit(do_not_specialize=["count"])
def turn_rows(
    q, out, count, D: tl.constexpr, P: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Heads of q, turned as K is: what is stored in codes."""
    start_next(PDL)
    wait_inputs(PDL)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, P)
    mask = (rows < count)[:, None] & (i < D)[None, :]
    x = tl.load(q + rows[:, None] * D + i[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(out + rows[:, None] * D + i[None, :], turn(x, ROWS, P, TURNS).to(tl.bfloat16), mask)
