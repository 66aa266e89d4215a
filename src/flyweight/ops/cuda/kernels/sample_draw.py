"""The draw of one row by one program, from the masses of its buckets.

Invariant: what is searched is always the shortest prefix of the candidates, best first, that
reaches a count or a mass: top_k, top_p, min_p and the draw itself are four such searches, and no
row is sorted.  A search finds the bucket, lists its candidates, and narrows the range of logits
among them.  Sums within a bucket are of integers: no order changes them.
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
    exp32,
    find_bucket,
    find_shift,
    key_value,
    load_logits,
    load_scale,
    order_key,
    place_id,
    place_value,
    power_of_two,
    weigh_logits,
)
from flyweight.ops.cuda.kernels.sample_list import list_buckets, reaches
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
    find_class,
    has_class,
    load_sums,
    split_words,
)

RUNGS = tl.constexpr(16)  # thresholds looked at in one pass


@triton.jit
def count_likely(x, size, top, sharp, least, BLOCK: tl.constexpr):
    """How many weights are at least `least`."""
    total = tl.zeros([BLOCK], tl.int32)
    for at in range(0, size, BLOCK):
        values = load_logits(x, at + tl.arange(0, BLOCK), size)
        valid = values > float("-inf")
        p = exp32(tl.where(valid, (values - top) * sharp, 0.0))
        total += (valid & (p.to(tl.float64) >= least)).to(tl.int32)
    return tl.sum(total, axis=0)


@triton.jit
def load_members(
    x, list_x, list_ids, listed, at, size, top, sharp, fine, rate, bucket,
    TILE: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """Keys, ids and words of a tile of the list, or of the row where the list is too short; a
    word is 0 where none is in the bucket.
    """
    places = at + tl.arange(0, TILE)
    if listed:
        values = load_logits(list_x, places, size)
        ids = tl.load(list_ids + places, mask=places < size, other=0)
    else:
        values = load_logits(x, places, size)
        ids = places
    mine, words = weigh_logits(values, top, sharp, fine, rate, BUCKETS)
    return order_key(values), ids, tl.where(mine == bucket, words, 0)


@triton.jit
def key_range(key, words):
    """The least and the greatest key, element by element, of members only."""
    member = words != 0
    return tl.where(member, key, 0x7FFFFFFF), tl.where(member, key, -0x80000000)


@triton.jit
def spread_words(key, words, rungs, by_count):
    """[TILE,RUNGS]: each member's count or weight at the thresholds it reaches."""
    counts, wholes = split_words(words)
    chosen = tl.where(by_count, counts, wholes)
    return tl.where(key[:, None] >= rungs[None, :], chosen[:, None], 0)


@triton.jit
def compare_words(key, ids, words, chosen):
    """Words above a key; which members have it, and their ids (else -1)."""
    same = (words != 0) & (key == chosen)
    return tl.where(key > chosen, words, 0), same.to(tl.int32), tl.where(same, ids, -1)


@triton.jit
def draw(
    x, stride, vocab, table, best, buckets, classes, counters, lists, list_places, tokens,
    LIST: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    r = tl.load(table + i * FIELDS + ROW).to(tl.int64)
    packed = tl.load(best + r)
    top = place_value(packed)
    token = place_id(packed)
    if tl.abs(top) < float("inf"):
        row = x + r * stride
        sharp, fine, rate = load_scale(table, i)
        u, top_p = tl.load(table + i * FIELDS + U), tl.load(table + i * FIELDS + TOP_P)
        min_p, top_k = tl.load(table + i * FIELDS + MIN_P), tl.load(table + i * FIELDS + TOP_K)
        head_x, head_ids = lists + 2 * i * LIST, list_places + 2 * i * LIST
        counter = counters + i * COUNTERS

        numbers = tl.arange(0, BUCKETS)
        edge, mask = tl.load(counter + EDGE), tl.load(counter + MASK)
        counts, count_sums, mass_sums = load_sums(
            buckets + i * BUCKETS, classes + i * (2 * CLASSES), edge, mask, rate, BUCKETS
        )
        last = tl.max(tl.where(counts > 0, numbers, 0), axis=0)
        kept, mass = tl.max(count_sums, axis=0), tl.max(mass_sums, axis=0)
        head_first, head_end = tl.load(counter + FIRST), tl.load(counter + END)
        first_2, end_2 = tl.load(counter + FIRST_2), tl.load(counter + END_2)
        head_size = tl.load(counter + HEAD_SIZE)
        likely = kept
        if min_p > 0:
            least = find_bucket(tl.log(min_p.to(tl.float32)), fine, BUCKETS)
            if (head_first == 0) & (least + 1 < head_end):
                found_likely = count_likely(head_x, head_size, top, sharp, min_p, BLOCK)
            else:
                found_likely = count_likely(row, vocab, top, sharp, min_p, BLOCK)
            likely = tl.maximum(found_likely.to(tl.float64), 1.0)

        held = last * 0 - 1  # the bucket that is in the list
        for turn in range(4):  # top_k, top_p, min_p, the draw
            phase = last * 0 + turn  # a number on the device in the interpreter too
            by_count = (phase == 0) | (phase == 2)
            strict = (phase == 3).to(tl.int32)
            target = u * mass
            active = phase == 3
            if phase == 0:
                target = top_k
                active = (top_k > 0) & (target < kept)
            if phase == 1:
                target = top_p * mass
                active = top_p < 1.0
            if phase == 2:
                target = likely
                active = likely < kept
            if active:
                prefixes = tl.where(by_count, count_sums, mass_sums)
                missed = 1 - reaches(prefixes, target, strict).to(tl.int32)
                bucket = tl.minimum(tl.sum(missed, axis=0), last)
                inside = tl.sum(tl.where(numbers == bucket, counts, 0), axis=0).to(tl.int32)
                base_count = tl.sum(tl.where(numbers == bucket - 1, count_sums, 0.0), axis=0)
                base_mass = tl.sum(tl.where(numbers == bucket - 1, mass_sums, 0.0), axis=0)
                unit = power_of_two(-find_shift(bucket, rate)).to(tl.float64)

                # a class that is not in buckets is never reached, but for the sums' last digits
                number = find_class(bucket, edge)
                listed = (inside <= LIST) & ((number < 0) | has_class(mask, number))
                done = (head_first == bucket) & (head_end == bucket + 1) & (first_2 == end_2)
                if listed & (held != bucket) & (done == 0):
                    in_head = (bucket >= head_first) & (bucket < head_end)
                    if in_head | ((bucket >= first_2) & (bucket < end_2)):
                        list_buckets(
                            head_x, head_ids, 0, head_size, top, sharp, fine, bucket, bucket + 1,
                            0, 0, head_x + LIST, head_ids + LIST, counter + phase, True, BLOCK,
                            BUCKETS,
                        )  # fmt: skip
                    else:
                        list_buckets(
                            row, head_ids, 0, vocab, top, sharp, fine, bucket, bucket + 1, 0, 0,
                            head_x + LIST, head_ids + LIST, counter + phase, False, BLOCK, BUCKETS,
                        )  # fmt: skip
                    tl.debug_barrier()  # what a thread has listed, others read
                    held = bucket
                size = tl.where(listed, inside, vocab)
                list_at = tl.where(done, 0, LIST)
                list_x, list_ids = head_x + list_at, head_ids + list_at

                # the first tile, often the only one, stays in registers
                key, ids, words = load_members(
                    row, list_x, list_ids, listed, 0, size, top, sharp, fine, rate, bucket,
                    TILE, BUCKETS,
                )  # fmt: skip
                lows, highs = key_range(key, words)
                for at in range(TILE, size, TILE):
                    more, _ids, more_words = load_members(
                        row, list_x, list_ids, listed, at, size, top, sharp, fine, rate, bucket,
                        TILE, BUCKETS,
                    )  # fmt: skip
                    more_lows, more_highs = key_range(more, more_words)
                    lows, highs = tl.minimum(lows, more_lows), tl.maximum(highs, more_highs)
                low = tl.min(lows, axis=0).to(tl.int64)
                high = tl.max(highs, axis=0).to(tl.int64)

                # narrowed to the largest key down to which the target is reached
                base = tl.where(by_count, base_count, base_mass)
                scale = tl.where(by_count, 1.0, unit)
                while low < high:
                    step = (high - low + RUNGS) // RUNGS
                    rungs = low + step * tl.arange(0, RUNGS).to(tl.int64)
                    rungs = tl.minimum(rungs, 0x7FFFFFFF).to(tl.int32)
                    sums = spread_words(key, words, rungs, by_count)
                    for at in range(TILE, size, TILE):
                        more, _ids, more_words = load_members(
                            row, list_x, list_ids, listed, at, size, top, sharp, fine, rate,
                            bucket, TILE, BUCKETS,
                        )  # fmt: skip
                        sums += spread_words(more, more_words, rungs, by_count)
                    found = base + tl.sum(sums, axis=0).to(tl.float64) * scale
                    passed = tl.sum(reaches(found, target, strict).to(tl.int64), axis=0)
                    low += step * tl.maximum(passed - 1, 0)
                    high = tl.minimum(high, low + (step - 1))
                chosen = low.to(tl.int32)

                # candidates above that key, and those that have it
                over, equal, first = compare_words(key, ids, words, chosen)
                for at in range(TILE, size, TILE):
                    more, more_ids, more_words = load_members(
                        row, list_x, list_ids, listed, at, size, top, sharp, fine, rate, bucket,
                        TILE, BUCKETS,
                    )  # fmt: skip
                    more_over, more_equal, more_first = compare_words(
                        more, more_ids, more_words, chosen
                    )
                    over += more_over
                    equal += more_equal
                    first = tl.maximum(first, more_first)
                over_count, over_whole = split_words(tl.sum(over, axis=0))
                ties = tl.sum(equal, axis=0)
                count_before = base_count + over_count.to(tl.float64)
                mass_before = base_mass + over_whole.to(tl.float64) * unit
                own = exp32((key_value(chosen) - top) * sharp).to(tl.float64)
                missing = tl.where(by_count, target - count_before, (target - mass_before) / own)
                needed = tl.where(phase == 3, tl.floor(missing) + 1.0, tl.ceil(missing))
                needed = tl.minimum(tl.maximum(needed, 1.0), ties.to(tl.float64))
                kept = count_before + needed
                mass = mass_before + needed * own

                if phase == 3:
                    low_id = tl.max(first, axis=0)
                    high_id = low_id
                    if ties > 1:
                        low_id = low_id * 0
                    while low_id < high_id:  # the lowest id that has enough ties up to it
                        middle = (low_id + high_id) // 2
                        upto = ((words != 0) & (key == chosen) & (ids <= middle)).to(tl.int32)
                        for at in range(TILE, size, TILE):
                            more, more_ids, more_words = load_members(
                                row, list_x, list_ids, listed, at, size, top, sharp, fine, rate,
                                bucket, TILE, BUCKETS,
                            )  # fmt: skip
                            same = (more_words != 0) & (more == chosen) & (more_ids <= middle)
                            upto += same.to(tl.int32)
                        enough = tl.sum(upto, axis=0).to(tl.float64) >= needed
                        low_id = tl.where(enough, low_id, middle + 1)
                        high_id = tl.where(enough, middle, high_id)
                    token = tl.where(low_id >= 0, low_id, token)
    tl.store(tokens + r, token.to(tl.int64))
