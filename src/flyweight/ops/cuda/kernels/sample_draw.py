"""The draw of one row by one program, from the masses of its buckets.

Invariant: what is searched is always the shortest prefix of the candidates, best first, that
reaches a count or a mass: top_k, top_p, min_p and the draw itself are four such searches, and no
row is sorted.  A search finds the bucket, lists its candidates, and narrows the range of logits
among them.  Sums within a bucket are of integers: no order changes them.
"""

import triton
import triton.language as tl

from flyweight.ops.cuda.kernels.sample import (
    MASS_BITS,
    exp32,
    find_bucket,
    find_shift,
    key_value,
    load_logits,
    order_key,
    place_id,
    place_value,
    power_of_two,
    weigh_logits,
)

RUNGS = tl.constexpr(16)  # thresholds looked at in one pass


@triton.jit
def reaches(sums, target, strict):
    return (sums > target) | ((sums == target) & (strict == 0))


@triton.jit
def split_words(words):
    """Counts and weights of words."""
    counts = words >> MASS_BITS
    return counts, words - (counts << MASS_BITS)


@triton.jit
def count_likely(x, vocab, top, sharp, least, BLOCK: tl.constexpr):
    """How many weights are at least `least`."""
    total = tl.zeros([BLOCK], tl.int32)
    for at in range(0, vocab, BLOCK):
        values = load_logits(x, at + tl.arange(0, BLOCK), vocab)
        valid = values > float("-inf")
        p = exp32(tl.where(valid, (values - top) * sharp, 0.0))
        total += (valid & (p.to(tl.float64) >= least)).to(tl.int32)
    return tl.sum(total, axis=0)


@triton.jit
def list_bucket(
    x, vocab, top, sharp, fine, rate, bucket, list_x, list_ids, counter,
    BLOCK: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    """Lists a bucket's candidates in any order."""
    for at in range(0, vocab, BLOCK):
        ids = at + tl.arange(0, BLOCK)
        values = load_logits(x, ids, vocab)
        valid = values > float("-inf")
        t = tl.where(valid, (values - top) * sharp, 0.0)
        found = valid & (find_bucket(t, fine, BUCKETS) == bucket)
        one = tl.full([BLOCK], 1, tl.int32)
        place = tl.atomic_add(counter + tl.zeros([BLOCK], tl.int32), one, mask=found, sem="relaxed")
        tl.store(list_x + place, values, mask=found)
        tl.store(list_ids + place, ids, mask=found)


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
    x, stride, vocab, rows, best, sharps, fines, rates, uniforms, top_ps, min_ps, top_ks, buckets,
    counters, lists, list_places, tokens,
    LIST: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, BUCKETS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    r = tl.load(rows + i).to(tl.int64)
    packed = tl.load(best + r)
    top = place_value(packed)
    token = place_id(packed)
    if tl.abs(top) < float("inf"):
        row = x + r * stride
        sharp, fine, rate = tl.load(sharps + i), tl.load(fines + i), tl.load(rates + i)
        top_k, top_p = tl.load(top_ks + i), tl.load(top_ps + i)
        min_p, u = tl.load(min_ps + i), tl.load(uniforms + i)
        list_x, list_ids = lists + i * LIST, list_places + i * LIST

        numbers = tl.arange(0, BUCKETS)
        counts, wholes = split_words(tl.load(buckets + i * BUCKETS + numbers))
        units = power_of_two(-find_shift(numbers, rate)).to(tl.float64)
        count_sums = tl.cumsum(counts, axis=0).to(tl.float64)
        mass_sums = tl.cumsum(wholes.to(tl.float64) * units, axis=0)
        last = tl.max(tl.where(counts > 0, numbers, 0), axis=0)
        kept, mass = tl.max(count_sums, axis=0), tl.max(mass_sums, axis=0)
        likely = kept
        if min_p > 0:
            likely = count_likely(row, vocab, top, sharp, min_p, BLOCK).to(tl.float64)
            likely = tl.maximum(likely, 1.0)

        held = last * 0 - 1  # the bucket that is in the list
        for turn in range(4):  # top_k, top_p, min_p, the draw
            phase = last * 0 + turn  # a number on the device in the interpreter too
            by_count = (phase == 0) | (phase == 2)
            strict = (phase == 3).to(tl.int32)
            target = u * mass
            active = phase == 3
            if phase == 0:
                target = top_k.to(tl.float64)
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

                listed = inside <= LIST
                if listed & (held != bucket):
                    list_bucket(
                        row, vocab, top, sharp, fine, rate, bucket, list_x, list_ids,
                        counters + 4 * i + phase, BLOCK, BUCKETS,
                    )  # fmt: skip
                    tl.debug_barrier()  # what a thread has listed, others read
                    held = bucket
                size = tl.where(listed, inside, vocab)

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
                short = tl.where(by_count, target - count_before, (target - mass_before) / own)
                needed = tl.where(phase == 3, tl.floor(short) + 1.0, tl.ceil(short))
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
                    token = low_id
    tl.store(tokens + r, token.to(tl.int64))
