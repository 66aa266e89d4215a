"""Attention over paged K and V: tiles of query rows against tiles of keys at fixed positions.

Invariant: what is done for a row depends on its q and on the K and V it sees.  Keys are taken in
tiles of KEYS positions, tiles in splits of SPLIT positions; every split begins from nothing and
splits are merged in ascending order by one formula.  A tile or a split without a seen key changes
no bit, so it may be left out.  A sum along the keys is made by `tl.dot`, whose order within a row
does not depend on how rows are laid over threads; fused products are written out, so that the
compiler has nothing to choose.  Knows nothing of what made K and V.

A row is one query head of one token.  A program has the heads of one KV head (GP of them, a power
of two, G at most are real) of TOKENS tokens of one sequence.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
SUMS = tl.constexpr(32)  # equal columns; above the fewest rows, so that warps lie along them


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
def find_blocks(table, keys, lowest, highest, BLOCK: tl.constexpr):
    """The block of each position that any row sees."""
    return tl.load(table + keys // BLOCK, mask=(keys >= lowest) & (keys <= highest), other=0)


@triton.jit
def add_tile(
    m, total, acc, q0, q1, start, block, p, low, lowest, highest, k, v, head, unit, shrink,
    HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    KEYS: tl.constexpr, IN_K: tl.constexpr, CAP: tl.constexpr, PAIRS: tl.constexpr,
    MASKED: tl.constexpr, CHECK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scores of KEYS positions from `start`, in these blocks, and their share of the sum."""
    kind: tl.constexpr = tl.bfloat16 if PAIRS else tl.float32
    keys = start + tl.arange(0, KEYS)
    live = (keys >= lowest) & (keys <= highest)
    at = (block.to(tl.int64) * HK + head) * BLOCK + keys % BLOCK
    k0 = load_columns(k, at, live, F0, N0, P0, DK, MASKED).to(kind)
    s = tl.zeros([q0.shape[0], KEYS], tl.float32)
    s = multiply(q0, tl.trans(k0), s, WIDE)
    if N1 > 0:
        k1 = load_columns(k, at, live, F1, N1, P1, DK, MASKED).to(kind)
        s = multiply(q1, tl.trans(k1), s, WIDE)
    if CAP:
        s = squash(s * shrink)
    if MASKED:
        seen = (keys[None, :] <= p[:, None]) & (keys[None, :] >= low[:, None])
        s = tl.where(seen, s, float("-inf"))
    top = tl.maximum(m, tl.max(s, 1) * unit)
    safe = tl.where(top == float("-inf"), 0.0, top)
    w = tl.exp2(tl.fma(s, unit, -safe[:, None]))
    fade = tl.exp2(m - safe)
    w = w.to(kind)
    values = k0 if IN_K else load_columns(v, at, live, 0, DV, PV, DV, MASKED).to(kind)
    acc = acc * fade[:, None]
    if CHECK:  # a row may not see all of these: 0 times infinity is not 0
        wide = values.to(tl.float32)
        wrong = (wide - wide) != 0
        acc = multiply(w, tl.where(wrong, 0.0, wide).to(kind), acc, WIDE)
        if tl.max(tl.max(wrong.to(tl.int32), 1), 0) > 0:
            of_row, of_value = seen.to(tl.float32).to(kind), wrong.to(tl.float32).to(kind)
            hits = multiply(of_row, of_value, tl.zeros_like(acc), WIDE)
            acc = tl.where(hits > 0, float("nan"), acc)
    else:
        acc = multiply(w, values, acc, WIDE)
    ones = tl.full([KEYS, SUMS], 1.0, tl.float32).to(kind)
    if PAIRS:
        total = multiply(w, ones, total * fade[:, None], WIDE)
    else:  # sums of plain float32: the compiler would fuse the product with the first of them
        total = tl.fma(total, fade[:, None], multiply(w, ones, tl.zeros_like(total), WIDE))
    return top, total, acc


@triton.jit
def add_tiles(
    m, total, acc, q0, q1, begin, end, p, low, lowest, highest, k, v, table, head, unit, shrink,
    HK: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    KEYS: tl.constexpr, IN_K: tl.constexpr, CAP: tl.constexpr, PAIRS: tl.constexpr,
    MASKED: tl.constexpr, CHECK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    keys = begin + tl.arange(0, KEYS)
    block = find_blocks(table, keys, lowest, highest, BLOCK)
    for start in range(begin, end, KEYS):
        keys += KEYS  # the next tile's blocks: loads of K and V then wait for no other load
        following = find_blocks(table, keys, lowest, highest, BLOCK)
        m, total, acc = add_tile(
            m, total, acc, q0, q1, start, block, p, low, lowest, highest, k, v, head, unit, shrink,
            HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP, PAIRS,
            MASKED, CHECK, WIDE,
        )  # fmt: skip
        block = following
    return m, total, acc


@triton.jit
def attend_rows(
    q, k, v, tables, starts, positions, sinks, out, parts, marks,
    width, tiles, splits, unit, shrink, window, chunk,
    HK: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, HEAD_TILES: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, BLOCK: tl.constexpr,
    F0: tl.constexpr, N0: tl.constexpr, P0: tl.constexpr,
    F1: tl.constexpr, N1: tl.constexpr, P1: tl.constexpr, PV: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
    IN_K: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, PAIRS: tl.constexpr, APART: tl.constexpr,
    WIDE: tl.constexpr,
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
                    m, total, acc, q0, q1, begin, full, p, low, lowest, highest, k, v, table, head,
                    unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP,
                    PAIRS, True, True, WIDE,
                )  # fmt: skip
            rest = tl.maximum(full, tl.minimum(end, to_all // KEYS * KEYS))
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, full, rest, p, low, lowest, highest, k, v, table, head,
                unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP,
                PAIRS, False, False, WIDE,
            )  # fmt: skip
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, rest, end, p, low, lowest, highest, k, v, table, head,
                unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP,
                PAIRS, True, True, WIDE,
            )  # fmt: skip
        else:  # all rows see the same keys
            m, total, acc = add_tiles(
                m, total, acc, q0, q1, begin, end, p, low, lowest, highest, k, v, table, head,
                unit, shrink, HK, DK, DV, BLOCK, F0, N0, P0, F1, N1, P1, PV, KEYS, IN_K, CAP,
                PAIRS, True, False, WIDE,
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
