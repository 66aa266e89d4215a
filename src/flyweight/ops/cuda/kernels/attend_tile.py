"""One tile of keys in the attention of some rows: scores, softmax weights, their share of V's sum.

Invariant: see attend.py.  A sum along the keys is made by `tl.dot`, whose order within a row does
not depend on how rows are laid over threads; fused products are written out, so that the compiler
has nothing to choose.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.store_codes import open_codes

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def multiply(a, b, acc, WIDE: tl.constexpr):
    """a b + acc in float32.  WIDE: Triton's interpreter has no bfloat16 product."""
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def squash(x):
    """tanh, to a few units in the last place for any x."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    far = (1.0 - e) / (1.0 + e)
    far = tl.where(x < 0, -far, far)
    y = x * x
    series = x * (1.0 + y * (-0.33333333 + y * (0.13333333 - y * 0.053968254)))
    return tl.where(tl.abs(x) < 0.0625, series, far)


@triton.jit
def load_columns(
    base, at, live, first: tl.constexpr, count: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """[rows, P]: `count` columns from `first` of the rows `at` of a matrix WIDTH wide."""
    columns = tl.arange(0, P)
    where = base + at[:, None] * WIDTH + (first + columns)[None, :]
    if count < P:
        if MASKED:
            return tl.load(where, mask=live[:, None] & (columns < count)[None, :], other=0.0)
        return tl.load(where, mask=(columns < count)[None, :], other=0.0)
    if MASKED:
        return tl.load(where, mask=live[:, None], other=0.0)
    return tl.load(where)


@triton.jit
def read_columns(
    base, at, live, first: tl.constexpr, count: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr,
    MASKED: tl.constexpr, PAIRS: tl.constexpr, CODE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The same as what is multiplied: bfloat16, or float32 without PAIRS."""
    if CODE:
        codes = load_columns(base, at, live, first, count, P, WIDTH, MASKED)
        x = open_codes(codes, CODE, WIDE)
    else:
        x = load_columns(base, at, live, first, count, P, WIDTH, MASKED)
    return x.to(tl.bfloat16 if PAIRS else tl.float32)


@triton.jit
def find_blocks(table, start, reach, KEYS: tl.constexpr, BLOCK: tl.constexpr):
    """The block of each position of the tile at `start`; of positions that no row sees any, for
    whether they are seen is not known yet.
    """
    keys = start + tl.arange(0, KEYS)
    return tl.load(table + keys // BLOCK, mask=keys < reach, other=0)


@triton.jit
def add_tile(
    m, total, acc, q0, q1, start, block, p, low, lowest, highest, k, v, k_scales, v_scales, head,
    unit, shrink, HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    KEYS: tl.constexpr, IN_K: tl.constexpr, CAP: tl.constexpr, PAIRS: tl.constexpr,
    CODE: tl.constexpr, MASKED: tl.constexpr, CHECK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores of KEYS positions from `start`, in these blocks, and their share of the sum."""
    kind: tl.constexpr = tl.bfloat16 if PAIRS else tl.float32
    keys = start + tl.arange(0, KEYS)
    live = (keys >= lowest) & (keys <= highest)
    at = (block.to(tl.int64) * HK + head) * BLOCK + keys % BLOCK
    k0 = read_columns(k, at, live, F0, N0, P0, DK, MASKED, PAIRS, CODE, WIDE)
    s = tl.zeros([q0.shape[0], KEYS], tl.float32)
    s = multiply(q0, tl.trans(k0), s, WIDE)
    if N1 > 0:
        k1 = read_columns(k, at, live, F1, N1, P1, DK, MASKED, PAIRS, CODE, WIDE)
        s = multiply(q1, tl.trans(k1), s, WIDE)
    if CODE:
        scale = tl.load(k_scales + at, mask=live, other=0.0)
        s = s * scale[None, :]
    if CAP:
        s = squash(s * shrink)
    if MASKED:
        seen = (keys[None, :] <= p[:, None]) & (keys[None, :] >= low[:, None])
        s = tl.where(seen, s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1) * unit)
    safe = tl.where(top == float("-inf"), 0.0, top)
    w = tl.exp2(tl.fma(s, unit, -safe[:, None]))
    fade = tl.exp2(m - safe)
    values = k0 if IN_K else read_columns(v, at, live, 0, DV, PV, DV, MASKED, PAIRS, CODE, WIDE)
    acc = acc * fade[:, None]
    if CODE:
        if not IN_K:
            scale = tl.load(v_scales + at, mask=live, other=0.0)
        if CHECK:  # a row may not see all of these: 0 times NaN is not 0
            wrong = (scale - scale) != 0
            acc = multiply((w * tl.where(wrong, 0.0, scale)[None, :]).to(kind), values, acc, WIDE)
            hit = tl.max((seen & wrong[None, :]).to(tl.int32), 1)
            acc = tl.where(hit[:, None] > 0, float("nan"), acc)
        else:
            acc = multiply((w * scale[None, :]).to(kind), values, acc, WIDE)
        w = w.to(kind)
    else:
        w = w.to(kind)
        if CHECK:
            wide = values.to(tl.float32)
            wrong = (wide - wide) != 0
            acc = multiply(w, tl.where(wrong, 0.0, wide).to(kind), acc, WIDE)
            if tl.max(tl.max(wrong.to(tl.int32), 1), 0) > 0:
                of_row, of_value = seen.to(tl.float32).to(kind), wrong.to(tl.float32).to(kind)
                hits = multiply(of_row, of_value, tl.zeros_like(acc), WIDE)
                acc = tl.where(hits > 0, float("nan"), acc)
        else:
            acc = multiply(w, values, acc, WIDE)
    ones = tl.full([KEYS, total.shape[1]], 1.0, tl.float32).to(kind)
    if PAIRS:
        total = multiply(w, ones, total * fade[:, None], WIDE)
    else:  # sums of plain float32: the compiler would fuse the product with the first of them
        total = tl.fma(total, fade[:, None], multiply(w, ones, tl.zeros_like(total), WIDE))
    return top, total, acc


@triton.jit
def add_tiles(
    m, total, acc, q0, q1, begin, end, block, p, low, lowest, highest, k, v, k_scales, v_scales,
    table, reach, head, unit, shrink,
    HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    KEYS: tl.constexpr, IN_K: tl.constexpr, CAP: tl.constexpr, PAIRS: tl.constexpr,
    CODE: tl.constexpr, MASKED: tl.constexpr, CHECK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Tiles of [begin, end); the first is in these blocks."""
    for start in range(begin, end, KEYS):  # the next blocks: K and V then wait for no other load
        following = find_blocks(table, start + KEYS, reach, KEYS, BLOCK)
        m, total, acc = add_tile(
            m, total, acc, q0, q1, start, block, p, low, lowest, highest, k, v, k_scales, v_scales,
            head, unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP,
            PAIRS, CODE, MASKED, CHECK, WIDE,
        )  # fmt: skip
        block = following
    return m, total, acc
