"""The memory plan of a model under settings, and the scheduler's limits that follow from it.

Invariant: nothing is allocated, and no tensor is read.
"""

import os
from dataclasses import replace

from flyweight.config import LEAST_MODEL_LEN, Limits, Settings, parse_bytes
from flyweight.describe import LoadListener, count_allowed_bytes
from flyweight.engine.grammars import LIVE_BYTES
from flyweight.engine.peer_blocks import ROOM as RECEIVED
from flyweight.errors import ConfigError, MemoryShortage
from flyweight.kv.peers.server import ROOM as SENT
from flyweight.ops.base import Ops
from flyweight.plan.fitting import plan_memory
from flyweight.plan.machine import Machine, measure_anonymous, measure_resident
from flyweight.plan.memory import GIB, MIB, MemoryPlan, Needs, Sizing, make_smallest_plan
from flyweight.resources import TOKEN_CACHE, EngineResources
from flyweight.sampling.grammar import compiler_nbytes
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.load import list_slot_kinds

NCCL_RESERVE = 1 << 30  # of each GPU, for the buffers of its collectives; never measured
# The processes of a server next to the engine's, measured after 20,000 mixed requests: the API
# server, with its own copy of the vocabulary, and two that try schemas.
API_SERVER, API_SERVER_TOKEN, VALIDATORS = 54 * MIB, 160, 40 * MIB


def count_server_bytes(vocab: int, *, first: bool = True, token_cache: int = TOKEN_CACHE) -> int:
    """What the other processes of a server take, for a vocabulary of so many tokens; without the
    API server itself, for a model that is not the `first`.
    """
    return (API_SERVER if first else 0) + API_SERVER_TOKEN * vocab + VALIDATORS + token_cache


def measure_needs(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, ops: Ops) -> Needs:
    """What a model needs of memory."""
    return Needs.of(spec, list_slot_kinds(checkpoint, plan), ops)


def make_memory_plan(
    settings: Settings,
    needs: Needs,
    here: Machine,
    *,
    served: bool = False,
    resources: EngineResources | None = None,
) -> MemoryPlan:
    """The memory plan at the requested context, or at the longest that fits, up to the model's; of
    a `served` model with grammars and the processes of its server.  What the process's other
    engines have reserved counts as held.
    """
    if here.device:  # whose memory has nothing of the host's
        served, needs = False, needs.on_gpu
    vocab, sharing = needs.spec.vocab, count_sharing(settings, here)
    first = resources is None or not resources.ledger.counts_server
    held = here.held if resources is None or here.device else resources.ledger.held
    if here.device and settings.tensor_parallel_size > 1:
        held += NCCL_RESERVE
    others = measure_anonymous(os.getppid()) if served else 0  # the API server has begun
    length = settings.max_model_len or find_context(needs)
    kv_dtype = needs.kv_dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
    blocks = settings.blocks or _count_bought_blocks(settings, needs, (kv_dtype, sharing))
    if blocks:
        length = min(length, blocks * settings.block_size)
    sizing = Sizing(
        max_model_len=length,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        kv_dtype=kv_dtype,
        threads=settings.threads or here.cores,
        draft_tokens=settings.draft_tokens,
        draft_probs=settings.speculation is not None and settings.speculation.probs,
        scored=settings.prompt_logprob_rows,
        blocks=blocks,
        grammars=LIVE_BYTES + compiler_nbytes(vocab) if served else 0,
        server=_count_server(vocab, resources, first) if served else 0,
        scores=vocab if settings.max_logprobs < 0 else settings.max_logprobs,
        on_gpu=here.device,
        swap=0 if here.device else int(settings.swap_space * GIB),
        peers=0 if here.device else _count_peers(settings),
        from_bytes=bool(settings.kv_cache_memory_bytes),
        ranks=settings.ranks,
        local_ranks=sharing,
    )
    least = length if settings.max_model_len else LEAST_MODEL_LEN
    allowed = count_allowed_bytes(settings, here, here.held + others)
    if sharing > 1:
        allowed = _divide_room(held, allowed, sharing)
    if resources is None:
        return plan_memory(needs, sizing, (held, allowed), least)
    try:
        plan = _plan_in_room(needs, sizing, (held, allowed), least, resources)
    except MemoryShortage:
        if not here.device:
            limit = parse_bytes(str(settings.memory_limit), here.total)
            if sharing > 1:
                limit = _divide_room(resources.ledger.base, limit, sharing)
            _check_alone(needs, sizing, limit, least, resources)
        raise
    own = plan.need - held
    all_ranks = own * sharing + measure_resident() * (sharing - 1)
    resources.ledger.reserve(resources.owner, all_ranks, server=served and first)
    return plan


def count_sharing(settings: Settings, here: Machine) -> int:
    """Ranks that share the memory of this machine; each of them has a GPU of its own."""
    return 1 if here.device else settings.local_ranks


def _divide_room(held: int, allowed: int, ranks: int) -> int:
    """What this process may hold as one of several ranks: each gets as much of the room that is
    left, and holds Python and torch as this one does.
    """
    return held + (allowed - held - measure_resident() * (ranks - 1)) // ranks


def _plan_in_room(
    needs: Needs, sizing: Sizing, bounds: tuple[int, int], least: int, resources: EngineResources
) -> MemoryPlan:
    """A plan within the engine's room; where that is too small and not fixed, a plan with K/V for
    one sequence within all that is left.
    """
    held, allowed = bounds
    own = resources.room // sizing.local_ranks
    room = min(allowed, held + own) if own else allowed
    try:
        return plan_memory(needs, sizing, (held, room), least)
    except MemoryShortage:
        if resources.fixed or room == allowed:
            raise
    plan = plan_memory(needs, sizing, bounds, least)
    return make_smallest_plan(
        needs, replace(sizing, max_model_len=plan.sizing.max_model_len), bounds
    )


def _check_alone(
    needs: Needs, sizing: Sizing, limit: int, least: int, resources: EngineResources
) -> None:
    """Raises `ConfigError` where a model would not fit either if all others were unloaded: then
    none of them is.
    """
    server = _count_server(needs.spec.vocab, resources, True) if sizing.server else 0
    base, name = resources.ledger.base, "memory_limit"
    room = resources.room // sizing.local_ranks
    if resources.fixed and room and base + room < limit:
        limit, name = base + room, "memory"
    try:
        plan_memory(needs, replace(sizing, server=server), (base, limit), least)
    except MemoryShortage as error:
        raise ConfigError(str(error).replace("memory_limit", name)) from None


def _count_server(vocab: int, resources: EngineResources | None, first: bool) -> int:
    """What a model takes in the server's other processes; the first also counts the API server."""
    if resources is None:
        return count_server_bytes(vocab)
    return count_server_bytes(vocab, first=first, token_cache=resources.token_cache)


def _count_peers(settings: Settings) -> int:
    """Blocks that are received from peers, or sent to them."""
    received = RECEIVED if settings.prefix_cache_peers else 0
    return received + (SENT if settings.prefix_cache_listen else 0)


def find_context(needs: Needs) -> int:
    """The longest context of a model, within the positions that what drafts has learned."""
    draft = needs.draft
    most = draft.spec.positions if draft is not None else 0
    return min(needs.spec.context, most) if most else needs.spec.context


def _count_bought_blocks(settings: Settings, needs: Needs, kept: tuple[str, int]) -> int:
    """K/V blocks, of the model and of what drafts for it, for kv_cache_memory_bytes; 0 where they
    have no limit of their own.  `kept`: in this type, by so many ranks.
    """
    kv_dtype, sharing = kept
    if not settings.kv_cache_memory_bytes:
        return 0
    both = [needs] if needs.draft is None else [needs, needs.draft]
    block = sum(one.count_block(settings.block_size, kv_dtype)[0] for one in both)
    least = -(-(settings.max_model_len or 1) // settings.block_size)
    blocks = settings.kv_cache_memory_bytes // sharing // block
    if blocks < least:
        raise ConfigError(
            f"hold {blocks} blocks of {block} bytes, less than one sequence",
            "kv_cache_memory_bytes",
            value=settings.kv_cache_memory_bytes,
            hint=f"nearest valid: {least * block * sharing}",
        )
    return blocks


def judge_length(settings: Settings, spec: ModelSpec, tell: LoadListener) -> None:
    wanted = settings.max_model_len
    if wanted is None or wanted <= spec.context:
        return
    if spec.positions:
        raise ConfigError(
            f"is above the {spec.positions} positions this model has learned",
            "max_model_len",
            value=wanted,
            hint=f"nearest valid: {spec.positions}",
        )
    tell.warn(
        f"max_model_len = {wanted} is above the {spec.context} tokens the model was made for; "
        "quality may fall beyond them"
    )


def make_limits(settings: Settings, memory: MemoryPlan, vocab: int) -> Limits:
    """The scheduler's limits under a memory plan."""
    return Limits(
        max_model_len=memory.sizing.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        blocks=memory.blocks,
        prefix_caching=settings.enable_prefix_caching and settings.kv_cache,
        max_chunk=settings.long_prefill_token_threshold or None,
        draft_tokens=settings.draft_tokens,
        scored=settings.prompt_logprob_rows,
        vocab=vocab,
    )
