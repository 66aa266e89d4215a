"""Kernels over segments of logits rows: the best id, the masses of buckets, edits, scores.

Invariant: a row's results depend on that row alone.  Whatever is joined by atomics is an integer,
so the order does not matter.  All must be launched without fused multiply-add
(`enable_fp_fusion=False`): the weights have the bits of the reference.  NaN counts as banned.

A weight's bucket is its distance from the best one in steps of 1 / `fine`.  In a bucket all weights
are multiples of one power of two, so a sum of them is exact in 64-bit integers: a word holds the
number of candidates above bit MASS_BITS and the sum of weights below.  The last bucket holds all
that is further away, in multiples of its power.
"""

import triton
import triton.language as tl

MASS_BITS = tl.constexpr(44)  # less than 2^19 candidates of at most 2^25 each
# fields of a row of the table of draws (sample_options.py)
U, TOP_P, MIN_P, TOP_K, SHARP, FINE, RATE, ROW, FIELDS = (tl.constexpr(i) for i in range(9))

ID_BITS = tl.constexpr(31)
PROMPT = tl.constexpr(1 << 30)  # in a count of drawn tokens: the prompt has it too


@triton.jit
def order_key(x):
    """An int32 in the order of the logits; both zeros are one."""
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x == 0.0, 0, key)


@triton.jit
def key_value(key):
    """The logit of a key."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def pack_place(x, ids):
    """A positive int64, larger for what comes first: a larger logit, then a lower id."""
    upwards = order_key(x).to(tl.int64) + 2147483648
    return (upwards << ID_BITS) | (ids ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def place_value(packed):
    return key_value(((packed >> ID_BITS) - 2147483648).to(tl.int32))


@triton.jit
def place_id(packed):
    return (packed & 0x7FFFFFFF).to(tl.int32) ^ 0x7FFFFFFF


@triton.jit
def load_logits(x, offsets, vocab):
    """Logits of a row; -infinity after its end and for NaN."""
    values = tl.load(x + offsets, mask=offsets < vocab, other=float("-inf"))
    return tl.where(values == values, values, float("-inf"))


@triton.jit
def exp32(x):
    """e^x for x <= 0 by the operations of native/exp32.h."""
    c = tl.maximum(x, -87.0)
    t = c * 1.44269504 + 12582912.0
    n = t - 12582912.0
    r = (c - n * 0.693359375) - n * -2.12194440e-4
    p = r * (1.0 / 5040.0) + (1.0 / 720.0)
    p = p * r + (1.0 / 120.0)
    p = p * r + (1.0 / 24.0)
    p = p * r + (1.0 / 6.0)
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    bits = p.to(tl.int32, bitcast=True) + (t.to(tl.int32, bitcast=True) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def power_of_two(n):
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def find_bucket(t, fine, BUCKETS: tl.constexpr):
    """The bucket of t = ln(weight)."""
    return tl.minimum(-t * fine, BUCKETS - 1.0).to(tl.int32)


@triton.jit
def find_shift(bucket, rate):
    """The power of two whose multiples a bucket's weights are, negated: at most 70 or so."""
    lowest = tl.floor((bucket + 1).to(tl.float32) * -rate - 0.01)
    return 23 - lowest.to(tl.int32)


@triton.jit
def weigh_logits(x, top, sharp, fine, rate, BUCKETS: tl.constexpr):
    """-> buckets, and words: 1 candidate and its weight; 0 where it is none."""
    valid = x > float("-inf")
    t = tl.where(valid, (x - top) * sharp, 0.0)
    bucket = find_bucket(t, fine, BUCKETS)
    whole = (exp32(t) * power_of_two(find_shift(bucket, rate))).to(tl.int64)
    word = whole + (tl.full(x.shape, 1, tl.int64) << MASS_BITS)
    return bucket, tl.where(valid, word, 0)


@triton.jit
def find_best(x, stride, vocab, rows, best, segments, BLOCK: tl.constexpr):
    """The first place of each of `rows`, into best[i], which is 0 before."""
    i = tl.program_id(0) // segments
    ids = tl.program_id(0) % segments * BLOCK + tl.arange(0, BLOCK)
    row = x + tl.load(rows + i).to(tl.int64) * stride
    packed = tl.where(ids < vocab, pack_place(load_logits(row, ids, vocab), ids), 0)
    tl.atomic_max(best + i, tl.max(packed, axis=0), sem="relaxed")


@triton.jit
def pack_places(x, stride, vocab, rows, out, segments, BLOCK: tl.constexpr):
    """Rows as places, to be sorted."""
    i = (tl.program_id(0) // segments).to(tl.int64)
    ids = tl.program_id(0) % segments * BLOCK + tl.arange(0, BLOCK)
    row = x + tl.load(rows + i).to(tl.int64) * stride
    packed = pack_place(load_logits(row, ids, vocab), ids)
    tl.store(out + i * vocab + ids, packed, mask=ids < vocab)


@triton.jit
def load_scale(table, i):
    """Row i's factors of logits, of buckets and of powers of two (sample_options.py)."""
    sharp = tl.load(table + i * FIELDS + SHARP).to(tl.float32)
    fine = tl.load(table + i * FIELDS + FINE).to(tl.float32)
    rate = tl.load(table + i * FIELDS + RATE).to(tl.float32)
    return sharp, fine, rate


@triton.jit
def find_group_bests(
    x, stride, vocab, rows, out, groups, segments, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """The first place of each group of ids."""
    i = (tl.program_id(0) // segments).to(tl.int64)
    group = tl.program_id(0) % segments * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    row = x + tl.load(rows + i).to(tl.int64) * stride
    packed = tl.where(ids < vocab, pack_place(load_logits(row, ids, vocab), ids), 0)
    tl.store(out + i * groups + group, tl.max(packed, axis=1), mask=group < groups)


@triton.jit
def unfold_groups(x, stride, vocab, rows, bests, out, best, GROUP: tl.constexpr):
    """All places of the groups whose first places are given."""
    i = (tl.program_id(0) // best).to(tl.int64)
    at = i * best + tl.program_id(0) % best
    ids = place_id(tl.load(bests + at)) // GROUP * GROUP + tl.arange(0, GROUP)
    row = x + tl.load(rows + i).to(tl.int64) * stride
    packed = tl.where(ids < vocab, pack_place(load_logits(row, ids, vocab), ids), 0)
    tl.store(out + at * GROUP + tl.arange(0, GROUP), packed)


@triton.jit
def find_token(sources, i, r, tokens, best):
    """The token of row r: given (>= 0), drawn (-1) or the best."""
    source = tl.load(sources + i)
    drawn = tl.load(tokens + r).to(tl.int32)
    first = place_id(tl.load(best + r))
    return tl.where(source >= 0, source, tl.where(source == -1, drawn, first))


@triton.jit
def score(
    x, stride, vocab, rows, sources, tokens, best, raw_best, ranks, parts, segments,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A segment's sum of e^(l - max), and how many of its ids come before the token."""
    i = tl.program_id(0) // segments
    segment = tl.program_id(0) % segments
    ids = segment * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(rows + i).to(tl.int64)
    token = find_token(sources, i, r, tokens, best)
    mine = pack_place(load_logits(x + r * stride, token, vocab), token)
    values = load_logits(x + r * stride, ids, vocab)
    before = (pack_place(values, ids) > mine) & (ids < vocab)
    count = tl.sum(before.to(tl.int32), axis=0).to(tl.int64)
    tl.atomic_add(ranks + i, count, sem="relaxed")
    top = place_value(tl.load(raw_best + i)).to(tl.float64)
    tl.store(parts + i.to(tl.int64) * segments + segment, sum_exp(values, top))


@triton.jit
def sum_exp(values, top):
    return tl.sum(tl.exp(values.to(tl.float64) - top), axis=0)


@triton.jit
def finish_scores(
    x, stride, vocab, rows, sources, tokens, best, parts, totals, mine, segments,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Joins the sums of a row, in an order of its own; the token's place among them."""
    i = tl.program_id(0)
    r = tl.load(rows + i).to(tl.int64)
    token = find_token(sources, i, r, tokens, best)
    tl.store(mine + i, pack_place(load_logits(x + r * stride, token, vocab), token))
    at = tl.arange(0, BLOCK)
    found = tl.load(parts + i.to(tl.int64) * segments + at, mask=at < segments, other=0.0)
    tl.store(totals + i, tl.sum(found, axis=0).to(tl.int64, bitcast=True))


@triton.jit
def count_history(history, starts, prompts, rows, counts, vocab, BLOCK: tl.constexpr):
    """Counts the drawn tokens of a row's history; PROMPT marks those of the prompt."""
    i = tl.program_id(0)
    r = tl.load(rows + i)
    first, end, prompt = tl.load(starts + r), tl.load(starts + r + 1), tl.load(prompts + r)
    out = counts + i.to(tl.int64) * vocab
    for at in range(first, end, BLOCK):
        places = at + tl.arange(0, BLOCK)
        held = places < end
        ids = tl.load(history + places, mask=held, other=0)
        drawn = held & (places - first >= prompt)
        tl.atomic_add(out + ids, tl.full([BLOCK], 1, tl.int32), mask=drawn, sem="relaxed")
        old = held & (places - first < prompt)
        tl.atomic_or(out + ids, tl.full([BLOCK], PROMPT, tl.int32), mask=old, sem="relaxed")


@triton.jit
def penalise(x, stride, vocab, rows, counts, penalties, segments, BLOCK: tl.constexpr):
    """Repetition, frequency and presence penalties, each operation rounded."""
    i = tl.program_id(0) // segments
    ids = tl.program_id(0) % segments * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(rows + i).to(tl.int64)
    known = tl.load(counts + i.to(tl.int64) * vocab + ids, mask=ids < vocab, other=0)
    repetition = tl.load(penalties + 3 * r) + tl.zeros([BLOCK], tl.float32)
    presence, frequency = tl.load(penalties + 3 * r + 1), tl.load(penalties + 3 * r + 2)
    at = x + r * stride + ids
    old = tl.load(at, mask=known != 0, other=0.0)
    new = tl.where(old > 0, tl.div_rn(old, repetition), old * repetition)
    times = known & (PROMPT - 1)
    drawn = (new - frequency * times.to(tl.float32)) - presence
    tl.store(at, tl.where(times > 0, drawn, new), mask=known != 0)


@triton.jit
def apply_masks(x, stride, vocab, rows, words, width, segments, BLOCK: tl.constexpr):
    """Bans the ids whose bit is 0."""
    i = tl.program_id(0) // segments
    ids = tl.program_id(0) % segments * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(rows + i).to(tl.int64)
    word = tl.load(words + i.to(tl.int64) * width + ids // 32, mask=ids < vocab, other=0)
    banned = ((word >> (ids % 32)) & 1) == 0
    tl.store(x + r * stride + ids, float("-inf"), mask=(ids < vocab) & banned)
