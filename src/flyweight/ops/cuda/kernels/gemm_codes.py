"""Words of codes to words of two bfloat16: those of a half of a unit, first h = 0, then h = 1.

Invariant: values of codes are exact; a product with a scale, or that less a minimum, is rounded
once.  The order of words is that of gemm_open.py.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.gemm_open import E4M3


@triton.jit
def look_up(words, table, HALF: tl.constexpr):
    """Values of a table of 16, whose bfloat16 follow it: the low bytes of all, then the high
    ones, 16 each.  A byte permutation looks up 4 codes at once, in 8 bytes.
    """
    bytes = table.to(tl.pointer_type(tl.int32)) + 16
    moved = (words >> 4) & 0x0F0F0F0F if HALF else words & 0x0F0F0F0F
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 at, low, high, a, b;
        shr.u32 at, $2, 4;
        or.b32 at, at, $2;
        prmt.b32 at, at, 0, 0x4420;
        shr.u32 high, at, 1;
        and.b32 high, high, 0x4444;
        or.b32 high, high, 0x3210;
        and.b32 at, at, 0x7777;
        prmt.b32 a, $3, $4, at;
        prmt.b32 b, $5, $6, at;
        prmt.b32 low, a, b, high;
        prmt.b32 a, $7, $8, at;
        prmt.b32 b, $9, $10, at;
        prmt.b32 high, a, b, high;
        prmt.b32 $0, low, high, 0x5140;
        prmt.b32 $1, low, high, 0x7362;
        }""",
        "=&r,=&r,r,r,r,r,r,r,r,r,r",
        [
            moved, tl.load(bytes), tl.load(bytes + 1), tl.load(bytes + 2), tl.load(bytes + 3),
            tl.load(bytes + 4), tl.load(bytes + 5), tl.load(bytes + 6), tl.load(bytes + 7),
        ],
        dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def read_small(words, HALF: tl.constexpr):
    """Floats of E2M1, doubled: moved to their places in bfloat16 and multiplied by the difference
    of the two biases.
    """
    moved = words & -0xF0F0F10 if HALF else (words << 4) & -0xF0F0F10
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, by, none;
        mov.b32 by, 0x7F007F00;
        mov.b32 none, 0x80008000;
        prmt.b32 x, $2, 0, 0x1404;
        shr.u32 y, x, 6;
        and.b32 y, y, 0x01C001C0;
        lop3.b32 x, x, 0x80008000, y, 0xEA;
        fma.rn.bf16x2 $0, x, by, none;
        prmt.b32 x, $2, 0, 0x3424;
        shr.u32 y, x, 6;
        and.b32 y, y, 0x01C001C0;
        lop3.b32 x, x, 0x80008000, y, 0xEA;
        fma.rn.bf16x2 $1, x, by, none;
        }""",
        "=&r,=&r,r", [moved], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def scale_whole(words, offset, by, HALF: tl.constexpr):
    """(code + offset) * by.  The bits of a code are the last ones of 128's mantissa, so that a
    byte permutation makes 128 + code; `offset` (-128 - zero point) makes it exact.
    """
    moved = (words >> 4) & 0x0F0F0F0F if HALF else words & 0x0F0F0F0F
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 top, one, none, x, y;
        mov.b32 top, 0x43434343;
        mov.b32 one, 0x3F803F80;
        mov.b32 none, 0x80008000;
        prmt.b32 x, $2, top, 0x4140;
        prmt.b32 y, $2, top, 0x4342;
        fma.rn.bf16x2 x, x, one, $3;
        fma.rn.bf16x2 y, y, one, $3;
        fma.rn.bf16x2 $0, x, $4, none;
        fma.rn.bf16x2 $1, y, $4, none;
        }""",
        "=&r,=&r,r,r,r", [moved, offset, by], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def scale_above(words, offset, by, least, HALF: tl.constexpr):
    """(code + offset) * by + least, rounded once."""
    moved = (words >> 4) & 0x0F0F0F0F if HALF else words & 0x0F0F0F0F
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 top, one, x, y;
        mov.b32 top, 0x43434343;
        mov.b32 one, 0x3F803F80;
        prmt.b32 x, $2, top, 0x4140;
        prmt.b32 y, $2, top, 0x4342;
        fma.rn.bf16x2 x, x, one, $3;
        fma.rn.bf16x2 y, y, one, $3;
        fma.rn.bf16x2 $0, x, $4, $5;
        fma.rn.bf16x2 $1, y, $4, $5;
        }""",
        "=&r,=&r,r,r,r,r", [moved, offset, by, least], dtype=(tl.int32, tl.int32), is_pure=True,
        pack=1,
    )  # fmt: skip


@triton.jit
def scale_pair(x, by):
    """Two bfloat16 times two."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 none; mov.b32 none, 0x80008000; fma.rn.bf16x2 $0, $1, $2, none; }",
        "=r,r,r", [x, by], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def read_floats(words, READ: tl.constexpr):
    """Words of four floats of 8 bits -> [BN,16,2]: words of two bfloat16, by h."""
    if READ == E4M3:
        a, b = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 x, y, by, none;
            mov.b32 by, 0x7B807B80;
            mov.b32 none, 0x80008000;
            prmt.b32 x, $2, 0, 0x1404;
            shr.u32 y, x, 4;
            and.b32 y, y, 0x07F007F0;
            lop3.b32 $0, x, 0x80008000, y, 0xEA;
            prmt.b32 x, $2, 0, 0x3424;
            shr.u32 y, x, 4;
            and.b32 y, y, 0x07F007F0;
            lop3.b32 $1, x, 0x80008000, y, 0xEA;
            fma.rn.bf16x2 $0, $0, by, none;
            fma.rn.bf16x2 $1, $1, by, none;
            }
            """,
            "=&r,=&r,r",
            [words],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        a, b = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 x, y, by, none;
            mov.b32 by, 0x77807780;
            mov.b32 none, 0x80008000;
            prmt.b32 x, $2, 0, 0x1404;
            shr.u32 y, x, 3;
            and.b32 y, y, 0x0FE00FE0;
            lop3.b32 $0, x, 0x80008000, y, 0xEA;
            prmt.b32 x, $2, 0, 0x3424;
            shr.u32 y, x, 3;
            and.b32 y, y, 0x0FE00FE0;
            lop3.b32 $1, x, 0x80008000, y, 0xEA;
            fma.rn.bf16x2 $0, $0, by, none;
            fma.rn.bf16x2 $1, $1, by, none;
            }
            """,
            "=&r,=&r,r",
            [words],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    return tl.join(a, b)
