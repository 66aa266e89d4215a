"""The choice of experts by a router's scores.

Invariant: a row's bits depend on that row alone.  Scores are float64, and those that differ by a
relative 2^-43 or more are in order; of equal ones the lower id goes first, NaN goes last.
"""

import triton
import triton.language as tl

LEAST = tl.constexpr(-(2**63))  # below every key
UNKNOWN = tl.constexpr(-(2**63) + 2**20)  # of NaN: below -inf
SIGN = tl.constexpr(2**63 - 1)


@triton.jit
def make_keys(x, places, SPAN: tl.constexpr):
    """Whole numbers, no two equal, in the order of float64 `x`: the last bits are `places`, from 0
    to SPAN - 1, and of equal numbers the one with the lower place is greater.
    """
    bits = (x + 0.0).to(tl.int64, bitcast=True)  # -0.0 + 0.0 is 0.0
    keys = tl.where(bits < 0, bits ^ SIGN, bits)
    keys = tl.where(x != x, UNKNOWN, keys)
    return (keys & -SPAN) + (SPAN - 1 - places).to(tl.int64)


@triton.jit
def keep_best_groups(
    by, here, at, GROUPS: tl.constexpr, KEPT: tl.constexpr, JUDGES: tl.constexpr,
    GP: tl.constexpr, PP: tl.constexpr,
):  # fmt: skip
    """Scores [GP*PP] with those of all but the best groups at -inf.  A group's worth is the sum of
    its JUDGES best; NaN makes it the least.
    """
    left = tl.reshape(tl.where(here, make_keys(by, at, GP * PP), LEAST), [GP, PP])
    values = tl.reshape(by, [GP, PP])
    unknown = tl.max(tl.reshape(tl.where(here & (by != by), 1, 0), [GP, PP]), axis=1)
    worth = tl.zeros([GP], tl.float64)
    for _ in tl.static_range(JUDGES):
        best = tl.max(left, axis=1)
        taken = (left == best[:, None]) & (left != LEAST)
        worth += tl.sum(tl.where(taken, values, 0.0), axis=1)
        left = tl.where(taken, LEAST, left)
    names = tl.arange(0, GP)
    worth = tl.where(unknown > 0, float("nan"), worth)
    keys = tl.where(names < GROUPS, make_keys(worth, names, GP), LEAST)
    kept = tl.zeros([GP], tl.int32)
    for _ in tl.static_range(KEPT):
        best_key = tl.max(keys, axis=0)
        kept = tl.where(keys == best_key, 1, kept)
        keys = tl.where(keys == best_key, LEAST, keys)
    wide = tl.reshape(tl.broadcast_to(kept[:, None], [GP, PP]), [GP * PP])
    return tl.where(wide > 0, by, float("-inf"))


@triton.jit
def route_kernel(
    logits, bias, ids, weights, E: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
    SCORING: tl.constexpr, NORMALISE: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr,
    KEPT: tl.constexpr, JUDGES: tl.constexpr, GP: tl.constexpr, PP: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """A token's experts, best first.  Each group of E / GROUPS is at a multiple of PP."""
    row = tl.program_id(0).to(tl.int64)
    PER: tl.constexpr = E // GROUPS
    SPAN: tl.constexpr = GP * PP
    at = tl.arange(0, SPAN)
    here = (at // PP < GROUPS) & (at % PP < PER)
    expert = (at // PP) * PER + at % PP
    x = tl.load(logits + row * E + expert, mask=here, other=float("-inf")).to(tl.float64)
    top = tl.max(x, axis=0)
    total = top
    by = x
    if SCORING == "softmax":
        powers = tl.where(here, tl.exp(x - top), 0.0)
        total = tl.sum(powers, axis=0)
        by = powers / total
    elif SCORING == "sigmoid":
        by = 1 / (1 + tl.exp(-x))
    if BIASED:
        by += tl.load(bias + expert, mask=here, other=0).to(tl.float64)
    if GROUPS > 1:
        by = keep_best_groups(by, here, at, GROUPS, KEPT, JUDGES, GP, PP)
    keys = tl.where(here, make_keys(by, at, SPAN), LEAST)
    slots = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int32)
    for j in tl.static_range(TOP):
        best_key = tl.max(keys, axis=0)
        place = SPAN - 1 - (best_key & (SPAN - 1)).to(tl.int32)
        keys = tl.where(keys == best_key, LEAST, keys)
        chosen = tl.where(slots == j, (place // PP) * PER + place % PP, chosen)
    filled = slots < TOP
    w = tl.load(logits + row * E + chosen, mask=filled, other=float("-inf")).to(tl.float64)
    if SCORING == "softmax":
        w = tl.exp(w - top) / total
    elif SCORING == "sigmoid":
        w = 1 / (1 + tl.exp(-w))
    else:
        powers = tl.where(filled, tl.exp(w - tl.max(w, axis=0)), 0.0)
        w = powers / tl.sum(powers, axis=0)
    if NORMALISE:
        w = w / tl.sum(tl.where(filled, w, 0.0), axis=0)
    tl.store(ids + row * TOP + slots, chosen, mask=filled)
    tl.store(weights + row * TOP + slots, (w * SCALE).to(tl.float32), mask=filled)
