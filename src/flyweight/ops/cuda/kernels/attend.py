"""Attention over paged K and V: tiles of query rows against tiles of keys at fixed positions.

Invariant: what is done for a row depends on its q and on the K and V it sees.  Keys are taken in
tiles of KEYS positions, tiles in splits of SPLIT positions, the first ones of SHORT.  Every split
begins from nothing, and splits are merged in ascending order by one formula.  A tile or a split
without a seen key changes no bit, so it may be left out.  Knows nothing of what made K and V.

A row is one query head of one token.  A program has the heads of one KV head (GP of them, a power
of two, G at most are real) of TOKENS tokens of one sequence.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.attend_tile import (
    LOG2E,
    add_tiles,
    find_blocks,
    load_columns,
)
from flyweight.ops.cuda.kernels.pdl import start_next, wait_inputs


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
def find_first(p, window, chunk, BOUND: tl.constexpr):
    """The first position that a token at `p` sees; BOUND: of windows and chunks that may end."""
    low = tl.zeros_like(p)
    if BOUND:
        low = tl.maximum(tl.maximum(low, p + 1 - window), p - p % chunk)
    return low


@triton.jit
def find_tile(item, starts, sequences, TOKENS: tl.constexpr):
    """(sequence, tile of its tokens) of a program: sequence s has the items from
    starts[s] // TOKENS + s, which are at least as many as its tiles.
    """
    s = 0
    above = sequences
    while above - s > 1:
        middle = (s + above) // 2
        if tl.load(starts + middle) // TOKENS + middle <= item:
            s = middle
        else:
            above = middle
    return s, item - tl.load(starts + s) // TOKENS - s


@triton.jit
def find_split(p, SHORT: tl.constexpr, NEAR: tl.constexpr, SPLIT: tl.constexpr):
    """The split of a position: the first NEAR positions are in splits of SHORT."""
    return tl.where(p < NEAR, p // SHORT, NEAR // SHORT + (p - NEAR) // SPLIT)


@triton.jit
def find_begin(split, SHORT: tl.constexpr, NEAR: tl.constexpr, SPLIT: tl.constexpr):
    """The first position of a split; of the next one, its end."""
    near: tl.constexpr = NEAR // SHORT
    return tl.where(split < near, split * SHORT, NEAR + (split - near) * SPLIT)


@triton.jit
def read_split(parts, marks, row, splits, split, last, real, DV: tl.constexpr, PV: tl.constexpr):
    """What another program stored; past L1, which may have the lines from before."""
    columns = tl.arange(0, PV)
    live = real & (split <= last)
    at = row * splits + split
    m = tl.load(marks + at * 2, mask=live, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(marks + at * 2 + 1, mask=live, other=0.0, cache_modifier=".cg")
    inside = live[:, None] & (columns < DV)[None, :]
    where = parts + at[:, None] * DV + columns[None, :]
    return m, total, tl.load(where, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def merge_all(
    parts, marks, row, splits, begun, last, real, ROWS: tl.constexpr, DV: tl.constexpr,
    PV: tl.constexpr, FOUR: tl.constexpr,
):  # fmt: skip
    """All splits of some rows.  FOUR: loads of four are under way together."""
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PV], tl.float32)
    if FOUR:
        for i in range(begun, last + 1, 4):
            m0, total0, acc0 = read_split(parts, marks, row, splits, i, last, real, DV, PV)
            m1, total1, acc1 = read_split(parts, marks, row, splits, i + 1, last, real, DV, PV)
            m2, total2, acc2 = read_split(parts, marks, row, splits, i + 2, last, real, DV, PV)
            m3, total3, acc3 = read_split(parts, marks, row, splits, i + 3, last, real, DV, PV)
            m, total, acc = merge(m, total, acc, m0, total0, acc0)
            m, total, acc = merge(m, total, acc, m1, total1, acc1)
            m, total, acc = merge(m, total, acc, m2, total2, acc2)
            m, total, acc = merge(m, total, acc, m3, total3, acc3)
    else:
        for i in range(begun, last + 1):
            m0, total0, acc0 = read_split(parts, marks, row, splits, i, last, real, DV, PV)
            m, total, acc = merge(m, total, acc, m0, total0, acc0)
    return m, total, acc


@triton.jit
def write_rows(
    out, sinks, row, h, real, m, total, acc, DV: tl.constexpr, PV: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    sink = tl.zeros_like(m)
    if SINKS:
        sink = tl.load(sinks + h, mask=real, other=0.0)
    mixed = divide(m, total, acc, sink, SINKS)
    columns = tl.arange(0, PV)
    where = out + row[:, None] * DV + columns[None, :]
    tl.store(where, mixed.to(out.dtype.element_ty), mask=real[:, None] & (columns < DV)[None, :])


# What differs from step to step must not make another kernel.
@triton.jit(
    do_not_specialize=["width", "sequences", "splits", "window", "chunk"],
    do_not_specialize_on_alignment=["tables", "starts", "positions", "sinks", "counters"],
)
def attend_rows(
    q, k, v, k_scales, v_scales, tables, starts, positions, sinks, out, parts, marks, counters,
    width, sequences, splits, unit, shrink, window, chunk,
    HK: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, HEAD_TILES: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    SUMS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr,
    SHORT: tl.constexpr, NEAR: tl.constexpr, SPLIT: tl.constexpr,
    IN_K: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    BOUND: tl.constexpr, PAIRS: tl.constexpr, APART: tl.constexpr, DECODE: tl.constexpr,
    CODE: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """APART: the programs of axis 1 share the splits; each leaves a split's sum in `parts`, its
    maximum and total in `marks`, and the last to end merges them.  Else one program has all splits.
    DECODE: token s belongs to sequence s.
    """
    start_next(PDL)
    wait_inputs(PDL)
    kind: tl.constexpr = tl.bfloat16 if PAIRS else tl.float32
    spread: tl.constexpr = HK * HEAD_TILES
    item = tl.program_id(0) // spread
    head = tl.program_id(0) % spread // HEAD_TILES
    s, tile, first, count = item, 0, item, 1
    if not DECODE:  # late tiles see most: they begin first
        s, tile = find_tile(tl.num_programs(0) // spread - 1 - item, starts, sequences, TOKENS)
        first = tl.load(starts + s)
        count = tl.load(starts + s + 1) - first
        if tile * TOKENS >= count:
            return
    rows = tl.arange(0, ROWS)
    mine = tile * TOKENS + rows // GP
    g = tl.program_id(0) % HEAD_TILES * GP + rows % GP
    real = (rows // GP < TOKENS) & (mine < count) & (g < G)
    token = (first + mine).to(tl.int64)
    row = token * (HK * G) + head * G + g  # of q, of `out`
    q0 = load_columns(q, row, real, F0, N0, P0, DK, True).to(kind)
    q1 = q0
    if N1 > 0:
        q1 = load_columns(q, row, real, F1, N1, P1, DK, True).to(kind)
    if DECODE:
        highest = tl.load(positions + s)
        p = tl.where(real, highest, -1)
    else:
        p = tl.load(positions + token, mask=real, other=-1)
        highest = tl.max(p, 0)
    low = find_first(p, window, chunk, BOUND)
    from_all = 0  # all rows see [from_all, to_all)
    to_all = tl.min(tl.where(real, p, highest), 0) + 1
    lowest = highest * 0
    if BOUND:
        lowest = tl.min(tl.where(real, low, highest), 0)
        from_all = tl.max(tl.where(real, low, 0), 0)
    table = tables + s.to(tl.int64) * width
    reach = width * BLOCK
    step = 1
    if APART:
        step = tl.num_programs(1)
    own = find_split(lowest, SHORT, NEAR, SPLIT) + tl.program_id(1)
    last = find_split(highest, SHORT, NEAR, SPLIT)
    begin = tl.maximum(find_begin(own, SHORT, NEAR, SPLIT), lowest // KEYS * KEYS)
    block = find_blocks(table, begin, reach, KEYS, BLOCK)
    if own > last:  # what the first tile needs is on its way
        return
    all_m = tl.full([ROWS], float("-inf"), tl.float32)
    all_total = tl.zeros([ROWS], tl.float32)
    all_acc = tl.zeros([ROWS, PV], tl.float32)
    columns = tl.arange(0, PV)
    inside = real[:, None] & (columns < DV)[None, :]
    for split in range(own, last + 1, step):
        begin = tl.maximum(find_begin(split, SHORT, NEAR, SPLIT), lowest // KEYS * KEYS)
        end = tl.minimum(find_begin(split + 1, SHORT, NEAR, SPLIT), highest + 1)
        m = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS, SUMS], tl.float32)
        acc = tl.zeros([ROWS, PV], tl.float32)
        if TOKENS > 1:
            full = tl.minimum(begin, end)
            if BOUND:
                full = tl.minimum(tl.maximum(begin, tl.cdiv(from_all, KEYS) * KEYS), end)
                m, total, acc = add_tiles(
                    m, total, acc, q0, q1, begin, full, block, p, low, lowest, highest, k, v,
                    k_scales, v_scales, table, reach, head, unit, shrink, HK, DK, DV, BLOCK, F0,
                    N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP, PAIRS, CODE, True, True, WIDE,
                )  # fmt: skip
                block = find_blocks(table, full, reach, KEYS, BLOCK)
            rest = tl.maximum(full, tl.minimum(end, to_all // KEYS * KEYS))
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, full, rest, block, p, low, lowest, highest, k, v,
                k_scales, v_scales, table, reach, head, unit, shrink, HK, DK, DV, BLOCK, F0,
                N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP, PAIRS, CODE, False, False, WIDE,
            )  # fmt: skip
            block = find_blocks(table, rest, reach, KEYS, BLOCK)
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, rest, end, block, p, low, lowest, highest, k, v,
                k_scales, v_scales, table, reach, head, unit, shrink, HK, DK, DV, BLOCK, F0,
                N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP, PAIRS, CODE, True, True, WIDE,
            )  # fmt: skip
        else:  # all rows see the same keys
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, begin, end, block, p, low, lowest, highest, k, v,
                k_scales, v_scales, table, reach, head, unit, shrink, HK, DK, DV, BLOCK, F0,
                N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP, PAIRS, CODE, True, False, WIDE,
            )  # fmt: skip
        block = find_blocks(table, find_begin(split + step, SHORT, NEAR, SPLIT), reach, KEYS, BLOCK)
        sums = tl.max(total, 1)  # its columns are equal
        if APART:
            to = row * splits + split
            tl.store(marks + to * 2, m, mask=real)
            tl.store(marks + to * 2 + 1, sums, mask=real)
            tl.store(parts + to[:, None] * DV + columns[None, :], acc, mask=inside)
        else:
            all_m, all_total, all_acc = merge(all_m, all_total, all_acc, m, sums, acc)
    if APART:
        counter = counters + tl.program_id(0)
        begun = find_split(lowest, SHORT, NEAR, SPLIT)
        present = tl.minimum(last - begun + 1, step)
        tl.debug_barrier()  # all threads have stored
        if tl.atomic_add(counter, 1, sem="acq_rel") == present - 1:
            tl.store(counter, 0)  # for the next call
            # Of ROWS only these can be real.
            some = tl.arange(0, GP * TOKENS)
            its = tile * TOKENS + some // GP
            g_its = tl.program_id(0) % HEAD_TILES * GP + some % GP
            real_its = (its < count) & (g_its < G)
            row_its = (first + its).to(tl.int64) * (HK * G) + head * G + g_its
            m_its, total_its, acc_its = merge_all(
                parts, marks, row_its, splits, begun, last, real_its, GP * TOKENS, DV, PV,
                TOKENS == 1,
            )  # fmt: skip
            write_rows(
                out, sinks, row_its, head * G + g_its, real_its, m_its, total_its, acc_its, DV, PV,
                SINKS,
            )  # fmt: skip
    else:
        write_rows(out, sinks, row, head * G + g, real, all_m, all_total, all_acc, DV, PV, SINKS)
