"""The masses of a row's buckets, as far as the draw needs them.

Invariant: a row's best candidates are added to buckets one by one; atomic additions are dear, so
the other ones, nearly all of a vocabulary, are first summed in CLASSES of WIDTH buckets each, the
last one open.  Then only the classes a search may end in (`MASK`) are added to buckets.  Sums are
of integers: no order changes them.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.sample import (
    FIELDS,
    MASS_BITS,
    MIN_P,
    ROW,
    TOP_K,
    TOP_P,
    U,
    exp32,
    find_bucket,
    find_shift,
    key_value,
    load_logits,
    load_scale,
    pack_place,
    place_value,
    power_of_two,
    weigh_logits,
)

CLASSES = tl.constexpr(6)
WIDTH = tl.constexpr(32)  # buckets of a class
OPEN_SHIFT = tl.constexpr(18)  # more digits for the last class, whose weights are of any size
SUM_BITS = tl.constexpr(48)  # a program's sum of weights in a class is below, its count above

# a row's counters: the lengths of the lists of four searches, and of the list made before them; the
# two ranges of buckets in that one, first and after the last; the first bucket of the classes; a
# mask of the classes that are in buckets
HEAD_SIZE, FIRST, END, FIRST_2, END_2, EDGE, MASK = (tl.constexpr(i) for i in range(4, 11))
COUNTERS = tl.constexpr(16)


@triton.jit
def find_group_tops(
    x, stride, vocab, rows, best, tops, groups, segments, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """The first place of each row, and the greatest key of each of its groups of ids."""
    i = tl.program_id(0) // segments
    group = tl.program_id(0) % segments * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    row = x + tl.load(rows + i).to(tl.int64) * stride
    packed = tl.where(ids < vocab, pack_place(load_logits(row, ids, vocab), ids), 0)
    firsts = tl.max(packed, axis=1)
    keys = ((firsts >> 31) - 2147483648).to(tl.int32)
    tl.store(tops + i.to(tl.int64) * groups + group, keys, mask=group < groups)
    tl.atomic_max(best + i, tl.max(firsts, axis=0), sem="relaxed")


@triton.jit
def find_edge(
    table, best, tops, groups, limit, counters, BLOCK: tl.constexpr, BUCKETS: tl.constexpr
):
    """The first bucket of the classes: at most `limit` groups have their best one before it."""
    i = tl.program_id(0).to(tl.int64)
    r = tl.load(table + i * FIELDS + ROW).to(tl.int64)
    top = place_value(tl.load(best + r))
    if tl.abs(top) < float("inf"):
        sharp, fine, _rate = load_scale(table, i)
        at = tl.arange(0, BLOCK)
        values = key_value(tl.load(tops + r * groups + at, mask=at < groups, other=0))
        valid = (at < groups) & (values > float("-inf"))
        bucket = find_bucket(tl.where(valid, (values - top) * sharp, 0.0), fine, BUCKETS)
        bucket = tl.where(valid, bucket, BUCKETS)
        low = (i * 0).to(tl.int32)
        high = low + (BUCKETS - 1)
        while low < high:
            middle = (low + high + 1) // 2
            fits = tl.sum((bucket < middle).to(tl.int32), axis=0) <= limit
            low = tl.where(fits, middle, low)
            high = tl.where(fits, high, middle - 1)
        tl.store(counters + i * COUNTERS + EDGE, low)


@triton.jit
def find_class(bucket, edge):
    """-1 before the classes."""
    return tl.where(bucket < edge, -1, tl.minimum((bucket - edge) // WIDTH, CLASSES - 1))


@triton.jit
def has_class(mask, number):
    return ((mask >> tl.maximum(number, 0)) & 1) != 0


@triton.jit
def mark_classes(first, last):
    """The mask of classes first to last; none where there are no such."""
    return ((1 << (last + 1)) - 1) & ~((1 << tl.maximum(first, 0)) - 1)


@triton.jit
def find_class_shift(number, edge, rate):
    """As `find_shift`: exact for all of a class but the last one."""
    open_end = number == CLASSES - 1
    bucket = edge + number * WIDTH + tl.where(open_end, 0, WIDTH - 1)
    return find_shift(bucket, rate) + tl.where(open_end, OPEN_SHIFT, 0)


@triton.jit
def weigh(
    x, stride, vocab, table, best, buckets, classes, counters, segments,
    BLOCK: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """Adds a segment's candidates to the buckets and the classes of row i of those drawn."""
    i = (tl.program_id(0) // segments).to(tl.int64)
    ids = tl.program_id(0) % segments * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(table + i * FIELDS + ROW).to(tl.int64)
    top = place_value(tl.load(best + r))
    if tl.abs(top) < float("inf"):
        values = load_logits(x + r * stride, ids, vocab)
        sharp, fine, rate = load_scale(table, i)
        edge = tl.load(counters + i * COUNTERS + EDGE)
        valid = values > float("-inf")
        t = tl.where(valid, (values - top) * sharp, 0.0)
        bucket = find_bucket(t, fine, BUCKETS)
        number = find_class(bucket, edge)
        shift = tl.where(number < 0, find_shift(bucket, rate), find_class_shift(number, edge, rate))
        whole = (exp32(t) * power_of_two(shift)).to(tl.int64)
        near = valid & (number < 0)
        word = whole + (tl.full([BLOCK], 1, tl.int64) << MASS_BITS)
        tl.atomic_add(buckets + i * BUCKETS + bucket, word, mask=near, sem="relaxed")
        out = classes + i * (2 * CLASSES)
        part = whole + (tl.full([BLOCK], 1, tl.int64) << SUM_BITS)
        for j in tl.static_range(CLASSES - 1):
            found = tl.sum(tl.where(valid & (number == j), part, 0), axis=0)
            if found != 0:
                count = found >> SUM_BITS
                tl.atomic_add(out + j, count, sem="relaxed")
                tl.atomic_add(out + CLASSES + j, found - (count << SUM_BITS), sem="relaxed")
        far = valid & (number == CLASSES - 1)
        far_count = tl.sum(far.to(tl.int32), axis=0).to(tl.int64)
        if far_count != 0:
            tl.atomic_add(out + (CLASSES - 1), far_count, sem="relaxed")
            far_whole = tl.sum(tl.where(far, whole, 0), axis=0)
            tl.atomic_add(out + (2 * CLASSES - 1), far_whole, sem="relaxed")


@triton.jit
def split_words(words):
    """Counts and weights of words."""
    counts = words >> MASS_BITS
    return counts, words - (counts << MASS_BITS)


@triton.jit
def load_sums(buckets, classes, edge, mask, rate, BUCKETS: tl.constexpr):
    """Candidates of each bucket; how many, and what mass, up to each.  A class that is not in
    buckets counts in the first of its own.
    """
    numbers = tl.arange(0, BUCKETS)
    counts, wholes = split_words(tl.load(buckets + numbers))
    masses = wholes.to(tl.float64) * power_of_two(-find_shift(numbers, rate)).to(tl.float64)
    number = find_class(numbers, edge)
    lump = (number >= 0) & (numbers == edge + number * WIDTH) & (has_class(mask, number) == 0)
    lumps = tl.load(classes + number, mask=lump, other=0)
    lump_wholes = tl.load(classes + CLASSES + number, mask=lump, other=0)
    lump_units = power_of_two(-find_class_shift(number, edge, rate)).to(tl.float64)
    counts += lumps
    masses += lump_wholes.to(tl.float64) * tl.where(lump, lump_units, 0.0)
    return counts, tl.cumsum(counts, axis=0).to(tl.float64), tl.cumsum(masses, axis=0)


@triton.jit
def find_reaching(sums, target, last):
    """The first bucket up to which the target is reached."""
    return tl.minimum(tl.sum((sums < target).to(tl.int32), axis=0), last)


@triton.jit
def aim(table, best, buckets, classes, counters, BUCKETS: tl.constexpr):
    """The classes in which a search of row i may end."""
    i = tl.program_id(0).to(tl.int64)
    r = tl.load(table + i * FIELDS + ROW).to(tl.int64)
    top = place_value(tl.load(best + r))
    if tl.abs(top) < float("inf"):
        _sharp, fine, rate = load_scale(table, i)
        u, top_p = tl.load(table + i * FIELDS + U), tl.load(table + i * FIELDS + TOP_P)
        min_p, top_k = tl.load(table + i * FIELDS + MIN_P), tl.load(table + i * FIELDS + TOP_K)
        edge = tl.load(counters + i * COUNTERS + EDGE)
        counts, count_sums, mass_sums = load_sums(
            buckets + i * BUCKETS, classes + i * (2 * CLASSES), edge, 0, rate, BUCKETS
        )
        last = tl.max(tl.where(counts > 0, tl.arange(0, BUCKETS), 0), axis=0)
        mass = tl.max(mass_sums, axis=0)
        # the draw is where a mass from `least` to `most` is reached, no later than bucket `end`;
        # one bucket more, as these sums differ from those of all buckets in the last digits
        end = last
        least = u * mass
        most = u * mass
        mask = last * 0
        if top_k > 0:
            end = find_reaching(count_sums, top_k, last)
            mass = tl.sum(tl.where(tl.arange(0, BUCKETS) == end, mass_sums, 0.0), axis=0)
            least = u * 0.0
            most = u * mass
            mask = mark_classes(find_class(end, edge), find_class(end, edge))
        if top_p < 1.0:  # of no more than `mass`
            end = find_reaching(mass_sums, top_p * mass, last)
            least = tl.where(top_k > 0, 0.0, u * (top_p * mass))
            most = u * (top_p * mass + 1.0)
            first = tl.where(top_k > 0, 0, find_class(end, edge))
            mask |= mark_classes(first, find_class(tl.minimum(end + 1, last), edge))
        if min_p > 0:
            place = find_bucket(tl.log(min_p.to(tl.float32)), fine, BUCKETS) + 1
            end = tl.minimum(end, place)
            least = least * 0.0
            mask |= mark_classes(0, find_class(tl.minimum(place, last), edge))
        first = find_class(find_reaching(mass_sums, least * (1.0 - 1e-12), last), edge)
        final = find_class(find_reaching(mass_sums, most * (1.0 + 1e-12), last), edge)
        end_class = find_class(tl.minimum(end + 1, last), edge)
        mask |= mark_classes(first, tl.minimum(final, end_class))
        tl.store(counters + i * COUNTERS + MASK, mask)


@triton.jit
def refine(
    x, stride, vocab, table, best, buckets, counters, segments,
    BLOCK: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """Adds a segment's candidates of the classes in MASK to their buckets."""
    i = (tl.program_id(0) // segments).to(tl.int64)
    mask = tl.load(counters + i * COUNTERS + MASK)
    if mask != 0:
        ids = tl.program_id(0) % segments * BLOCK + tl.arange(0, BLOCK)
        r = tl.load(table + i * FIELDS + ROW).to(tl.int64)
        top = place_value(tl.load(best + r))
        values = load_logits(x + r * stride, ids, vocab)
        sharp, fine, rate = load_scale(table, i)
        edge = tl.load(counters + i * COUNTERS + EDGE)
        bucket, word = weigh_logits(values, top, sharp, fine, rate, BUCKETS)
        number = find_class(bucket, edge)
        wanted = (word != 0) & (number >= 0) & has_class(mask, number)
        out = buckets + i * BUCKETS
        tl.atomic_add(out + bucket, word, mask=wanted & (bucket < BUCKETS - 1), sem="relaxed")
        # very many may be in the last one: summed here
        far = tl.sum(tl.where(wanted & (bucket == BUCKETS - 1), word, 0), axis=0)
        if far != 0:
            tl.atomic_add(out + (BUCKETS - 1), far, sem="relaxed")
