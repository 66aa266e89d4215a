"""Fits a model's memory plan under a limit, or says what does not fit and what would.

Invariant: what is suggested fits; the parts that a refusal lists add up to what is needed.  It
allocates nothing.
"""

from collections.abc import Callable
from dataclasses import replace

from flyweight.errors import ConfigError, MemoryShortage
from flyweight.ops.base import check_codes
from flyweight.plan.memory import (
    DRAFT_MODEL,
    GIB,
    LOAD_BUFFER,
    MARGIN,
    MIB,
    MIN_CONTEXT,
    MemoryPlan,
    Needs,
    Sizing,
    count_blocks,
    format_size,
    make_smallest_plan,
)
from flyweight.spec import KV_TYPES, ModelSpec

CHOICES = 3  # that a refusal lists
SMALLER_KV = ("int8", "int4")


def plan_memory(needs: Needs, sizing: Sizing, bounds: tuple[int, int], least: int) -> MemoryPlan:
    """The plan under `bounds` = (bytes held now, bytes allowed).

    The context is shortened as little as it must be, down to `least` tokens; blocks are as many as
    can be used and fit.  Raises `MemoryShortage` naming the nearest settings that fit.
    """

    def plan_for(length: int) -> MemoryPlan:
        return make_smallest_plan(needs, replace(sizing, max_model_len=length), bounds)

    length = _find_longest(plan_for, min(least, sizing.max_model_len), sizing.max_model_len)
    if length is None:
        raise MemoryShortage(
            _explain_refusal(needs, plan_for(min(least, sizing.max_model_len)), bounds)
        )
    plan = plan_for(length)
    if not sizing.blocks:
        useful = sizing.max_num_seqs * count_blocks(length, sizing.block_size)
        spare = (plan.limit - plan.need) // plan.block_cost
        plan = replace(plan, blocks=max(plan.blocks, min(useful, plan.blocks + spare)))
    return plan


def _find_longest(plan_for: Callable[[int], MemoryPlan], low: int, high: int) -> int | None:
    """The longest context from low to high whose plan fits, by bisection: need grows with it."""
    if plan_for(high).need <= plan_for(high).limit:
        return high
    if low > high or plan_for(low).need > plan_for(low).limit:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if plan_for(middle).need <= plan_for(middle).limit:
            low = middle
        else:
            high = middle
    return low


def _explain_refusal(needs: Needs, plan: MemoryPlan, bounds: tuple[int, int]) -> str:
    """One line: what is needed, what is allowed, and the nearest settings that fit."""
    sizing = replace(plan.sizing, draft_tokens=0, draft_probs=False)
    alone = make_smallest_plan(needs.undrafted, sizing, bounds)
    drafted = needs.draft is not None or needs.plain is not None
    if drafted and alone.need <= alone.limit:
        return _explain_large_drafter(needs, plan)
    ways = [*_suggest_less_swap(plan), _raise_limit(plan)]
    if drafted:
        ways.append(f"{_raise_limit(alone)}, no speculative_config")
    shorter = _suggest_smaller(needs, plan.sizing, _keep_margin(plan))
    ways += shorter[:1] + _suggest_smaller_kv(needs, plan) + _suggest_fewer_blocks(needs, plan)
    ways += shorter[1:] + _suggest_quantized(needs, plan)
    drafting = _list_drafter_parts(plan, f" of the {plan.drafter}")
    return (
        f"memory_limit of {format_size(plan.limit * sizing.local_ranks)} is too small: "
        f"this model needs {format_size(plan.need)}{sizing.spread} "
        f"({_join_parts(_list_own_parts(plan) + drafting + _list_rest(plan))}); "
        f"nearest settings that fit: {' or '.join(ways[:CHOICES])}"
    )


def _explain_large_drafter(needs: Needs, plan: MemoryPlan) -> str:
    """One line, where the model fits and what drafts for it does not."""
    own, others = _list_drafter_parts(plan), _list_own_parts(plan) + _list_rest(plan)
    ways = _suggest_smaller_drafter(needs, plan)
    ways += _suggest_smaller(needs, plan.sizing, _keep_margin(plan))
    ways = [*ways[: CHOICES - 2], _raise_limit(plan), "no speculative_config"]
    need = "they need" if plan.drafter.endswith("s") else "it needs"
    return (
        f"memory_limit of {format_size(plan.limit)} is too small for the {plan.drafter}: "
        f"{need} {_join_parts(own)}, and the model {format_size(sum(size for size, _ in others))} "
        f"({_join_parts(others)}), together {format_size(plan.need)}; "
        f"nearest settings that fit: {' or '.join(ways)}"
    )


def _list_own_parts(plan: MemoryPlan) -> list[tuple[int, str]]:
    """What the model itself needs."""
    return [
        (plan.weights + plan.rounding, "weights"),
        (plan.kv, f"K/V for {plan.sizing.max_model_len} tokens"),
    ]


def _list_drafter_parts(plan: MemoryPlan, of: str = "") -> list[tuple[int, str]]:
    """What the drafter adds to it."""
    return [(plan.draft, f"weights{of}"), (plan.draft_kv, f"K/V{of}")]


def _list_rest(plan: MemoryPlan) -> list[tuple[int, str]]:
    """What both share, and the process holds."""
    return [
        (plan.step + plan.logits, "to compute with"),
        (plan.books, "for lists of tokens"),
        (plan.sizing.grammars, "for grammars"),
        (plan.sizing.server, "for the API server"),
        (plan.sizing.swap, "for swap_space"),
        (max(0, LOAD_BUFFER - plan.running), "more while loading"),
        (plan.base, "held already"),
    ]


def _join_parts(parts: list[tuple[int, str]]) -> str:
    return ", ".join(f"{format_size(size)} {what}" for size, what in parts if size)


def _keep_margin(plan: MemoryPlan) -> tuple[int, int]:
    """The bounds of what is suggested."""
    return plan.base, plan.limit - MARGIN


def _raise_limit(plan: MemoryPlan) -> str:
    return f"memory_limit = {-(-(plan.need + MARGIN) * plan.sizing.local_ranks // MIB)}MiB"


def _suggest_less_swap(plan: MemoryPlan) -> list[str]:
    """The swap space that there is room for."""
    left = plan.limit - MARGIN - (plan.need - plan.sizing.swap)
    return [f"swap_space = {left // (GIB // 100) / 100:g}"] if plan.sizing.swap and left > 0 else []


def _suggest_smaller_drafter(needs: Needs, plan: MemoryPlan) -> list[str]:
    """Fewer draft tokens, where what they were drawn from is kept; a smaller draft model."""
    bounds, ways = _keep_margin(plan), list[str]()

    def fits(tokens: int) -> bool:
        sizing = replace(plan.sizing, draft_tokens=tokens)
        return make_smallest_plan(needs, sizing, bounds).need <= bounds[1]

    if plan.sizing.draft_probs:  # else they are small, and a tree has a number of its own
        most = max(filter(fits, range(1, plan.sizing.draft_tokens)), default=0)
        ways += [f"num_speculative_tokens = {most}"] if most else []
    if plan.drafter == DRAFT_MODEL:
        rest = make_smallest_plan(needs.undrafted, plan.sizing, bounds).need
        room = format_size(bounds[1] - rest)
        ways += [f"a draft model of at most {room}, K/V included"] if rest < bounds[1] else []
    return ways


def _suggest_smaller(needs: Needs, sizing: Sizing, bounds: tuple[int, int]) -> list[str]:
    """Smaller settings that fit: a shorter context, and shorter steps with as long a context as
    they leave room for.
    """
    if sizing.blocks:
        return []
    found: list[tuple[int, str]] = []
    tokens, seqs = sizing.max_num_batched_tokens, sizing.max_num_seqs
    for step in (tokens, 64, 1):
        narrow = replace(
            sizing,
            max_num_batched_tokens=min(step, tokens),
            max_num_seqs=min(step, seqs) if step == tokens else 1,
        )
        length = _find_longest(
            lambda n, s=narrow: make_smallest_plan(needs, replace(s, max_model_len=n), bounds),  # type: ignore[misc]
            min(MIN_CONTEXT, sizing.max_model_len),
            sizing.max_model_len,
        )
        if length is None or any(length <= known for known, _ in found):
            continue
        words = [f"max_model_len = {length}"]
        if step != tokens:
            words.append(f"max_num_batched_tokens = {step}, max_num_seqs = 1")
        found.append((length, ", ".join(words)))
    return [words for _, words in found]


def _suggest_smaller_kv(needs: Needs, plan: MemoryPlan) -> list[str]:
    """The widest smaller type of K/V that fits, with the same context."""
    bounds, sizing = _keep_margin(plan), plan.sizing
    specs = [needs.spec] + ([needs.draft.spec] if needs.draft is not None else [])
    for kind in SMALLER_KV if not sizing.from_bytes else ():
        smaller = KV_TYPES[kind].bits < KV_TYPES[sizing.kv_dtype].bits
        if not smaller or not all(_stores(spec, sizing.block_size, kind) for spec in specs):
            continue
        if make_smallest_plan(needs, replace(sizing, kv_dtype=kind), bounds).need <= bounds[1]:
            return [f"kv_cache_dtype = {kind}"]
    return []


def _stores(spec: ModelSpec, block_size: int, kind: str) -> bool:
    """Whether K/V of a model can be of this type."""
    try:
        for layer in spec.layers:
            check_codes(layer.kv, block_size, kind)
    except ConfigError:
        return False
    return True


def _suggest_fewer_blocks(needs: Needs, plan: MemoryPlan) -> list[str]:
    """The most blocks that fit, where their number is set, with the context that they hold."""
    bounds, sizing = _keep_margin(plan), plan.sizing

    def plan_for(blocks: int) -> MemoryPlan:
        length = min(sizing.max_model_len, blocks * sizing.block_size)
        less = replace(sizing, blocks=blocks, max_model_len=length)
        return make_smallest_plan(needs, less, bounds)

    least = -(-MIN_CONTEXT // sizing.block_size)
    blocks = _find_longest(plan_for, least, sizing.blocks) if sizing.blocks else None
    if blocks is None:
        return []
    found = plan_for(blocks)
    block = found.block + found.draft_block
    words = (
        f"kv_cache_memory_bytes = {blocks * block}" if sizing.from_bytes else f"blocks = {blocks}"
    )
    length = found.sizing.max_model_len
    return [words if length == sizing.max_model_len else f"{words}, max_model_len = {length}"]


def _suggest_quantized(needs: Needs, plan: MemoryPlan) -> list[str]:
    """The largest GGUF file of the model that fits, whichever types its matrices have; none of a
    family that is not written as GGUF.  A step's arrays are not larger with them.
    """
    files = needs.undrafted.files
    if files is None:
        return []
    size = (plan.limit - MARGIN - (plan.need - plan.weights) - files.more) // MIB
    if size * MIB < files.least:
        return []
    again = " --requantize" if files.quantised else ""
    command = f"flyweight quantize MODEL --target-size {size}MiB{again}"
    return [f"weights of at most {size} MiB ({command})"]
