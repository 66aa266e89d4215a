"""Attention over paged K and V: tiles of query rows against tiles of keys at fixed positions.

Invariant: what is done for a row depends on its q and on the K and V it sees.  Keys are taken in
tiles of KEYS positions, tiles in splits of SPLIT positions; every split begins from nothing and
splits are merged in ascending order by one formula.  A tile or a split without a seen key changes
no bit, so it may be left out.  Knows nothing of what made K and V.

A row is one query head of one token.  A program has the heads of one KV head (GP of them, a power
of two, G at most are real) of TOKENS tokens of one sequence.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.attend_tile import LOG2E, SUMS, add_tiles, load_columns


@triton.jit
def merge(m, total, acc, m_new, total_new, acc_new):
    """One more split joins those before it."""
    top = tl.maximum(m, m_new)
    safe = tl.where(top == float("-inf"), 0.0, top)
    a, b = tl.exp2(m - safe), tl.exp2(m_new - safe)
    total = tl.fma(total, a, total_new * b)
    acc = tl.fma(acc, a[:, None], acc_new * b[:, None])
    return top, total, acc


@triton.jit
def divide(m, total, acc, sink, SINKS: tl.constexpr):
    """The softmax's division; a sink is a score without a value."""
    if SINKS:
        total += tl.exp2(tl.fma(sink, LOG2E, -m))
    return tl.div_rn(acc, total[:, None])


@triton.jit
def find_first(p, window, chunk, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first position that a token at `p` sees."""
    low = tl.zeros_like(p)
    if WINDOW:
        low = tl.maximum(low, p + 1 - window)
    if CHUNK:
        low = tl.maximum(low, p - p % chunk)
    return low


@triton.jit
def attend_rows(
    q, k, v, k_scales, v_scales, tables, starts, positions, sinks, out, parts, marks,
    width, tiles, splits, unit, shrink, window, chunk,
    HK: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, HEAD_TILES: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
    IN_K: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, PAIRS: tl.constexpr, APART: tl.constexpr,
    CODE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """APART: every split's sum goes to `parts`, its maximum and total to `marks`, and the programs
    of axis 1 share the splits; else one program merges all splits and writes `out`.
    """
    kind: tl.constexpr = tl.bfloat16 if PAIRS else tl.float32
    spread: tl.constexpr = HK * HEAD_TILES
    s = tl.program_id(2)
    tile = tiles - 1 - tl.program_id(0) // spread  # late tiles see most: they begin first
    head = tl.program_id(0) % spread // HEAD_TILES
    first = tl.load(starts + s)
    count = tl.load(starts + s + 1) - first
    if tile * TOKENS >= count:
        return
    rows = tl.arange(0, ROWS)
    mine = tile * TOKENS + rows // GP
    g = tl.program_id(0) % HEAD_TILES * GP + rows % GP
    real = (rows // GP < TOKENS) & (mine < count) & (g < G)
    token = (first + mine).to(tl.int64)
    p = tl.load(positions + token, mask=real, other=-1)
    low = find_first(p, window, chunk, WINDOW, CHUNK)
    highest = tl.max(p, 0)
    lowest = tl.min(tl.where(real, low, highest), 0)
    from_all = tl.max(tl.where(real, low, 0), 0)  # all rows see [from_all, to_all)
    to_all = tl.min(tl.where(real, p, highest), 0) + 1
    row = token * (HK * G) + head * G + g  # of q, of `out`
    q0 = load_columns(q, row, real, F0, N0, P0, DK, True).to(kind)
    q1 = q0
    if N1 > 0:
        q1 = load_columns(q, row, real, F1, N1, P1, DK, True).to(kind)
    table = tables + s.to(tl.int64) * width
    all_m = tl.full([ROWS], float("-inf"), tl.float32)
    all_total = tl.zeros([ROWS], tl.float32)
    all_acc = tl.zeros([ROWS, PV], tl.float32)
    columns = tl.arange(0, PV)
    inside = real[:, None] & (columns < DV)[None, :]
    step = 1
    if APART:
        step = tl.num_programs(1)
    for split in range(lowest // SPLIT + tl.program_id(1), highest // SPLIT + 1, step):
        begin = tl.maximum(split * SPLIT, lowest // KEYS * KEYS)
        end = tl.minimum(split * SPLIT + SPLIT, highest + 1)
        m = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS, SUMS], tl.float32)
        acc = tl.zeros([ROWS, PV], tl.float32)
        if TOKENS > 1:
            full = tl.minimum(begin, end)
            if WINDOW or CHUNK:
                full = tl.minimum(tl.maximum(begin, tl.cdiv(from_all, KEYS) * KEYS), end)
                m, total, acc = add_tiles(
                    m, total, acc, q0, q1, begin, full, p, low, lowest, highest, k, v, k_scales,
                    v_scales, table, head, unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1,
                    PV, KEYS, IN_K, CAP, PAIRS, CODE, True, True, WIDE,
                )  # fmt: skip
            rest = tl.maximum(full, tl.minimum(end, to_all // KEYS * KEYS))
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, full, rest, p, low, lowest, highest, k, v, k_scales,
                v_scales, table, head, unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1,
                PV, KEYS, IN_K, CAP, PAIRS, CODE, False, False, WIDE,
            )  # fmt: skip
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, rest, end, p, low, lowest, highest, k, v, k_scales,
                v_scales, table, head, unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1,
                PV, KEYS, IN_K, CAP, PAIRS, CODE, True, True, WIDE,
            )  # fmt: skip
        else:  # all rows see the same keys
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, begin, end, p, low, lowest, highest, k, v, k_scales,
                v_scales, table, head, unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1,
                PV, KEYS, IN_K, CAP, PAIRS, CODE, True, False, WIDE,
            )  # fmt: skip
        sums = tl.max(total, 1)  # its columns are equal
        if APART:
            to = row * splits + split
            tl.store(marks + to * 2, m, mask=real)
            tl.store(marks + to * 2 + 1, sums, mask=real)
            tl.store(parts + to[:, None] * DV + columns[None, :], acc, mask=inside)
        else:
            all_m, all_total, all_acc = merge(all_m, all_total, all_acc, m, sums, acc)
    if not APART:
        sink = tl.zeros([ROWS], tl.float32)
        if SINKS:
            sink = tl.load(sinks + head * G + g, mask=real, other=0.0)
        mixed = divide(all_m, all_total, all_acc, sink, SINKS)
        where = out + row[:, None] * DV + columns[None, :]
        tl.store(where, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def merge_splits(
    parts, marks, positions, sinks, out, splits, window, chunk,
    HQ: tl.constexpr, DV: tl.constexpr, PV: tl.constexpr, SPLIT: tl.constexpr,
    SINKS: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One head of one token: its splits in ascending order, as `attend_rows` merges them."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(0) % HQ
    p = tl.load(positions + tl.program_id(0) // HQ)
    low = find_first(p, window, chunk, WINDOW, CHUNK)
    columns = tl.arange(0, PV)
    m = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, PV], tl.float32)
    one = tl.arange(0, 1)
    for base in range(low // SPLIT, p // SPLIT + 1, 4):
        for j in tl.static_range(4):  # loads of four are under way together
            split = base + j + one
            live = split <= p // SPLIT
            at = row * splits + split
            m_new = tl.load(marks + at * 2, mask=live, other=float("-inf"))
            total_new = tl.load(marks + at * 2 + 1, mask=live, other=0.0)
            inside = live[:, None] & (columns < DV)[None, :]
            where = parts + at[:, None] * DV + columns[None, :]
            acc_new = tl.load(where, mask=inside, other=0.0)
            m, total, acc = merge(m, total, acc, m_new, total_new, acc_new)
    sink = tl.zeros([1], tl.float32)
    if SINKS:
        sink = tl.load(sinks + h + one)
    mixed = divide(m, total, acc, sink, SINKS)
    where = out + (row + one)[:, None] * DV + columns[None, :]
    tl.store(where, mixed.to(out.dtype.element_ty), mask=(columns < DV)[None, :])
