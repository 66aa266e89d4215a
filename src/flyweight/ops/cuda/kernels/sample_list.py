"""Lists of a row's candidates by bucket, for the draw.

Invariant: a list has all the candidates of a range of buckets, in any order; its length is a
counter that is 0 before.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.sample import (
    FIELDS,
    MIN_P,
    ROW,
    TOP_K,
    TOP_P,
    U,
    find_bucket,
    load_logits,
    load_scale,
    place_value,
)
from flyweight.ops.cuda.kernels.sample_weigh import (
    CLASSES,
    COUNTERS,
    EDGE,
    END,
    END_2,
    FIRST,
    FIRST_2,
    HEAD_SIZE,
    MASK,
    find_reaching,
    load_sums,
)


@triton.jit
def reaches(sums, target, strict):
    return (sums > target) | ((sums == target) & (strict == 0))


@triton.jit
def list_buckets(
    x, known, start, size, top, sharp, fine, first, end, first_2, end_2, list_x, list_ids, counter,
    KNOWN: tl.constexpr, BLOCK: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """Lists the candidates of x[start:size] in two ranges of buckets; ids are known or counted."""
    for at in range(start, size, BLOCK):
        ids = at + tl.arange(0, BLOCK)
        values = load_logits(x, ids, size)
        if KNOWN:
            ids = tl.load(known + ids, mask=ids < size, other=0)
        valid = values > float("-inf")
        t = tl.where(valid, (values - top) * sharp, 0.0)
        bucket = find_bucket(t, fine, BUCKETS)
        found = (bucket >= first) & (bucket < end) | (bucket >= first_2) & (bucket < end_2)
        found = valid & found
        one = tl.full([BLOCK], 1, tl.int32)
        place = tl.atomic_add(counter + tl.zeros([BLOCK], tl.int32), one, mask=found, sem="relaxed")
        tl.store(list_x + place, values, mask=found)
        tl.store(list_ids + place, ids, mask=found)


@triton.jit
def list_head(
    x, stride, vocab, table, best, buckets, classes, counters, lists, list_places, segments,
    HEAD: tl.constexpr, LIST: tl.constexpr, SEGMENT: tl.constexpr, BLOCK: tl.constexpr,
    BUCKETS: tl.constexpr,
):  # fmt: skip
    """Lists what the draw will look at: its bucket where nothing is cut, else the first buckets, of
    at most HEAD candidates, or where top_p ends.  One segment of row i.
    """
    i = (tl.program_id(0) // segments).to(tl.int64)
    segment = tl.program_id(0) % segments
    r = tl.load(table + i * FIELDS + ROW).to(tl.int64)
    top = place_value(tl.load(best + r))
    if tl.abs(top) < float("inf"):
        sharp, fine, rate = load_scale(table, i)
        u, top_p = tl.load(table + i * FIELDS + U), tl.load(table + i * FIELDS + TOP_P)
        min_p, top_k = tl.load(table + i * FIELDS + MIN_P), tl.load(table + i * FIELDS + TOP_K)
        counter = counters + i * COUNTERS
        counts, count_sums, mass_sums = load_sums(
            buckets + i * BUCKETS, classes + i * (2 * CLASSES), tl.load(counter + EDGE),
            tl.load(counter + MASK), rate, BUCKETS,
        )  # fmt: skip
        numbers = tl.arange(0, BUCKETS)
        last = tl.max(tl.where(counts > 0, numbers, 0), axis=0)
        mass = tl.max(mass_sums, axis=0)
        first = last * 0
        end = tl.sum((count_sums <= HEAD).to(tl.int32), axis=0)
        first_2 = last * 0
        end_2 = last * 0
        if ((top_k > 0) | (top_p < 1.0) | (min_p > 0)) == 0:
            first = tl.minimum(tl.sum((mass_sums <= u * mass).to(tl.int32), axis=0), last)
            inside = tl.sum(tl.where(numbers == first, counts, 0), axis=0)
            end = first + (inside <= LIST).to(tl.int32)
        if ((top_k > 0) | (min_p > 0)) == 0:
            place = find_reaching(mass_sums, top_p * mass, last)
            if (top_p < 1.0) & (place >= end):
                # past the best ones: the bucket that top_p ends in, and those the draw may be in
                least, most = u * (top_p * mass), u * (top_p * mass + 1.0)
                from_2 = find_reaching(mass_sums, least * (1.0 - 1e-12), last)
                to_2 = find_reaching(mass_sums, most * (1.0 + 1e-12), last) + 1
                to_2 = tl.minimum(to_2, place)
                wanted = (numbers == place) | ((numbers >= from_2) & (numbers < to_2))
                if tl.sum(tl.where(wanted, counts, 0), axis=0) <= LIST:
                    first = place
                    end = place + 1
                    first_2 = from_2
                    end_2 = to_2
        if segment == 0:
            tl.store(counter + FIRST, first)
            tl.store(counter + END, end)
            tl.store(counter + FIRST_2, first_2)
            tl.store(counter + END_2, end_2)
        start = segment * SEGMENT
        list_buckets(
            x + r * stride, list_places, start, tl.minimum(start + SEGMENT, vocab), top, sharp,
            fine, first, end, first_2, end_2, lists + 2 * i * LIST, list_places + 2 * i * LIST,
            counter + HEAD_SIZE, False, BLOCK, BUCKETS,
        )  # fmt: skip
