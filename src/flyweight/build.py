"""The composition root: settings to a running engine.  The only place that names concrete classes
of several packages.

Invariant: the memory plan is made, and shown through `notify`, before a tensor is read.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyweight.config import LEAST_MODEL_LEN, Limits, PackedCacheSettings, Settings
from flyweight.describe import (
    LoadListener,
    ModelDescription,
    SilentListener,
    check_quality,
    choose_activations,
    count_allowed_bytes,
    describe,
    find,
)
from flyweight.draft.drafter import Drafter, StoringDrafter
from flyweight.draft.methods import (
    DraftBase,
    DrafterParts,
    DraftSource,
    SecondModel,
    make_drafter,
    open_source,
)
from flyweight.engine.admission import ADMISSIONS
from flyweight.engine.engine import Engine
from flyweight.engine.grammars import LIVE_BYTES, Grammars
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.recomputation import Recomputation
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.errors import ConfigError
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import Prefault, allocate_kv
from flyweight.kv.residency import Residency
from flyweight.models.adapters import list_kinds as adapter_kinds
from flyweight.models.adapters import pack_adapter
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.ops.base import Ops, Packing
from flyweight.ops.operands import Weights
from flyweight.pairing import DraftDescription, find_draft, judge_draft_length
from flyweight.passport import Quality
from flyweight.plan.machine import Machine, measure_anonymous, read_machine
from flyweight.plan.memory import (
    MemoryPlan,
    Needs,
    Sizing,
    SlotKinds,
    count_server_bytes,
    plan_memory,
)
from flyweight.sampling.grammar import Compiler, GrammarVocabulary, compiler_nbytes
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.text.tokenizer import Tokenizer
from flyweight.weights.adapter import Adapter, open_adapter
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.load import list_slot_kinds, load
from flyweight.weights.packed.folder import CacheFolder
from flyweight.weights.packed.keptfile import lay_out, make_key
from flyweight.weights.packed.shelf import LayerPrefetch, Note, Opener, UncachedWeights
from flyweight.wire import F32


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.  `moving` and `ahead` are what else is done for it when there is time.
    `generation` is the checkpoint's generation_config.json, `isa` the instruction set that is
    computed with, `quality` what the model's passport says.  `quantisation` and `opened` are as
    `Checkpoint` has them.
    """

    engine: Engine
    moving: LayerPrefetch
    ahead: Prefault
    tokenizer: Tokenizer
    spec: ModelSpec
    memory: MemoryPlan
    limits: Limits
    stop_ids: frozenset[int]
    generation: dict[str, Any]
    isa: str
    quality: Quality
    quantisation: str
    opened: int


def choose_backend(settings: Settings, cores: int) -> Ops:
    """The requested op table: native kernels, or the NumPy reference."""
    if settings.backend == "reference":
        from flyweight.ops.reference import ReferenceOps

        return ReferenceOps(settings.activations)
    if settings.backend == "cuda":
        return _make_cuda(settings)
    from flyweight.ops.cpu import CpuOps

    return CpuOps(settings.threads or cores, settings.isa, settings.activations)


def _make_cuda(settings: Settings) -> Ops:
    """The CUDA backend."""
    try:
        from flyweight.ops.cuda import CudaOps
        from flyweight.ops.cuda.device import find_device
        from flyweight.ops.cuda.kv import check_stored
    except (ImportError, OSError) as missing:
        raise ConfigError(
            _describe_missing(missing),
            "backend",
            value="cuda",
            hint="pip install 'flyweight[cuda]', or backend = cpu",
        ) from missing
    if settings.kv_cache_dtype != "auto":
        check_stored(settings.kv_cache_dtype)  # before anything is loaded
    return CudaOps(
        str(find_device()),
        choose_activations(settings),
        deterministic=settings.deterministic is True,
        graphs=not settings.enforce_eager,
    )


def _describe_missing(missing: ImportError | OSError) -> str:
    """Why torch or Triton cannot be imported: not installed, or a library of theirs is missing."""
    if isinstance(missing, ModuleNotFoundError):
        return f"needs {missing.name}, which is not installed"
    first = str(missing).partition("\n")[0]
    return f"needs torch and triton, which cannot be imported: {first}"


def read_place(ops: Ops) -> Machine:
    """The cores of this machine, and the memory that the backend computes in."""
    here = read_machine()
    memory = ops.read_memory()
    return here if memory is None else Machine(here.cores, *memory, device=True)


def build(
    settings: Settings, notify: LoadListener | None = None, *, served: bool = False
) -> LoadedModel:
    """Loads a model and wires its engine.  The memory plan of a `served` one counts grammars, which
    any client may request, and the server's other processes.  Raises `ConfigError` or
    `CheckpointError`.
    """
    tell: LoadListener = notify or SilentListener()
    found = describe(find(settings, tell), settings.quantization)
    check_quality(settings, found.quality)
    ops = choose_backend(settings, read_machine().cores)
    here = read_place(ops)
    adapters = [open_adapter(Path(path).expanduser()) for path in settings.adapters.values()]
    needs = measure_needs(found.checkpoint, found.spec, found.plan, ops)
    needs = needs.add(_list_adapter_kinds(adapters, found), ops)
    drafts = _open_drafts(settings, found)
    needs = needs.add_heads(drafts.kinds, drafts.stored, ops) if drafts else needs
    second = find_draft(settings, found, tell)
    if second is not None:
        own = second.found
        needs = replace(needs, draft=measure_needs(own.checkpoint, own.spec, own.plan, ops))
    memory = make_memory_plan(settings, needs, here, served=served)
    judge_length(settings, found.spec, tell)
    if second is not None:
        judge_draft_length(second, memory.sizing.max_model_len, tell)
    tell.show_plan(memory, found)
    weights, moving = load_weights(settings, found, ops, tell)
    low = [pack_adapter(adapter, found.published, ops) for adapter in adapters]
    parts = Parts(ops, SingleProcess(), found.spec, weights, low)
    model = Decoder(parts, memory.sizing.max_model_len)
    limits = make_limits(settings, memory, found.spec.vocab)
    layers = allocate_kv(found.spec, ops, limits, memory.sizing.kv_dtype)
    held = f"{found.checkpoint.fingerprint} {memory.sizing.kv_dtype}"
    pair = _load_draft(second, settings, ops, memory, limits) if second else None
    drafter = _make_drafter(settings, DrafterParts(limits, found.spec.vocab, model, drafts, pair))
    draft_kv = drafter.layers if isinstance(drafter, StoringDrafter) else ()
    runner = Runner(model, ops, layers, drafter.taps if drafter else (), draft_kv)
    engine = _make_engine(settings, limits, runner, drafter, found, held)
    engine.drafts.on_end = runner.stop_taps
    found.checkpoint.close()
    for adapter in adapters:
        adapter.close()
    return LoadedModel(
        engine=engine,
        moving=moving,
        ahead=Prefault(engine.scheduler.pool, [*layers, *draft_kv], ops),
        tokenizer=found.tokenizer,
        spec=found.spec,
        memory=memory,
        limits=limits,
        stop_ids=found.stop_ids,
        generation=found.checkpoint.generation,
        isa=getattr(ops, "isa", "numpy"),
        quality=found.quality,
        quantisation=found.checkpoint.quantisation,
        opened=found.checkpoint.opened,
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


def load_weights(
    settings: Settings, found: ModelDescription, ops: Ops, tell: LoadListener
) -> tuple[dict[str, Weights | F32], LayerPrefetch]:
    """The model's weights, from the packed ones kept of an earlier start where there are any; else
    they are kept for the next.
    """
    opener = open_packed_cache(settings, found.checkpoint, found.plan, ops, tell.note)
    shelf, whole = opener.open() if opener else UncachedWeights(), False
    try:
        weights = load(found.checkpoint, found.plan, ops, tell.report_progress, shelf)
        whole = True
        return weights, shelf.moving
    finally:
        shelf.close(whole)


def open_packed_cache(
    settings: Settings, checkpoint: Checkpoint, plan: WeightPlan, ops: Ops, note: Note
) -> Opener | None:
    """The way to a model's kept packed weights; none where they are not wanted, or the backend
    packs nothing that could be in a file.
    """
    room = PackedCacheSettings.of_environment()
    if not settings.packed_cache or not isinstance(ops, Packing) or room.folder is None:
        return None
    key = make_key(checkpoint.fingerprint, checkpoint.stamps, plan, ops.packing)
    matrices = [
        (slot, (shape[0], shape[1]), kind)
        for slot, parts in list_slot_kinds(checkpoint, plan).items()
        for shape, kind in parts
        if len(shape) == 2
    ]
    layout = lay_out(key, matrices, ops.count_packed_bytes)
    return Opener(CacheFolder(room.folder, room.room), layout, ops, note, read_machine().cores)


def _list_adapter_kinds(adapters: Sequence[Adapter], found: ModelDescription) -> SlotKinds:
    """What adapters add to the model's matrices, for the memory plan."""
    return {f"adapter {i}": adapter_kinds(a, found.published) for i, a in enumerate(adapters)}


def measure_needs(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, ops: Ops) -> Needs:
    """What a model needs of memory."""
    return Needs.of(spec, list_slot_kinds(checkpoint, plan), ops)


def make_memory_plan(
    settings: Settings, needs: Needs, here: Machine, *, served: bool = False
) -> MemoryPlan:
    """The memory plan at the requested context, or at the longest that fits, up to the model's; of
    a `served` model with grammars and the processes of its server.
    """
    held, vocab = here.held, needs.spec.vocab
    others = measure_anonymous(os.getppid()) if served else 0  # the API server has begun
    length = settings.max_model_len or find_context(needs)
    kv_dtype = needs.kv_dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
    blocks = settings.blocks or _count_bought_blocks(settings, needs, kv_dtype)
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
        server=count_server_bytes(vocab) if served else 0,
        scores=vocab if settings.max_logprobs < 0 else settings.max_logprobs,
        on_gpu=here.device,
    )
    least = length if settings.max_model_len else LEAST_MODEL_LEN
    allowed = count_allowed_bytes(settings, here, held + others)
    return plan_memory(needs, sizing, (held, allowed), least)


def find_context(needs: Needs) -> int:
    """The longest context of a model, within the positions that its draft model has learned."""
    draft = needs.draft
    most = draft.spec.positions if draft is not None else 0
    return min(needs.spec.context, most) if most else needs.spec.context


def _count_bought_blocks(settings: Settings, needs: Needs, kv_dtype: str) -> int:
    """K/V blocks, of both models where there is a draft model, for kv_cache_memory_bytes; 0 where
    they have no limit of their own.
    """
    if not settings.kv_cache_memory_bytes:
        return 0
    both = [needs] if needs.draft is None else [needs, needs.draft]
    block = sum(one.count_block(settings.block_size, kv_dtype)[0] for one in both)
    least = -(-(settings.max_model_len or 1) // settings.block_size)
    blocks = settings.kv_cache_memory_bytes // block
    if blocks < least:
        raise ConfigError(
            f"hold {blocks} blocks of {block} bytes, less than one sequence",
            "kv_cache_memory_bytes",
            value=settings.kv_cache_memory_bytes,
            hint=f"nearest valid: {least * block}",
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


def _open_drafts(settings: Settings, found: ModelDescription) -> DraftSource | None:
    """What drafts are made with, checked before anything is loaded."""
    checkpoint = found.checkpoint
    base = DraftBase(found.spec, checkpoint.fingerprint, settings.block_size, checkpoint)
    return None if settings.speculation is None else open_source(settings.speculation, base)


def _load_draft(
    draft: DraftDescription, settings: Settings, ops: Ops, memory: MemoryPlan, limits: Limits
) -> SecondModel:
    """A draft model's weights, packed anew at every start, and its K/V."""
    found, sizing = draft.found, memory.sizing
    weights, _ = load_weights(replace(settings, packed_cache=False), found, ops, SilentListener())
    model = Decoder(Parts(ops, SingleProcess(), found.spec, weights), sizing.max_model_len)
    found.checkpoint.close()
    layers = allocate_kv(found.spec, ops, limits, sizing.kv_dtype)
    return SecondModel(model, layers, draft.ids, draft.spellers)


def _make_drafter(settings: Settings, parts: DrafterParts) -> Drafter | None:
    return None if settings.speculation is None else make_drafter(settings.speculation, parts)


def _make_engine(
    settings: Settings, limits: Limits, runner: Runner, drafter: Drafter | None,
    found: ModelDescription, fingerprint: str,
) -> Engine:  # fmt: skip
    """The engine; `fingerprint` names the model and what its K/V is kept in."""
    watched = Residency(settings.kv_cache_metrics_sample) if settings.kv_cache_metrics else None
    pool = BlockPool(limits.blocks, limits.block_size, residency=watched)
    admission = ADMISSIONS[settings.scheduler](limits.max_num_seqs)
    scheduler = Scheduler(limits, pool, fingerprint=fingerprint, admission=admission)
    grammars = Grammars(lambda: Compiler(make_grammar_vocabulary(found)))
    adapters = tuple(settings.adapters)
    engine = Engine(scheduler, runner, drafter, EngineMetrics(), adapters, grammars)
    if settings.speculation is not None:
        engine.drafts.configure(settings.speculation)
    if not settings.kv_cache:
        engine.add_hook(Recomputation(scheduler))
    return engine


def make_grammar_vocabulary(found: ModelDescription) -> GrammarVocabulary:
    """A model's tokens as grammars need them."""
    tokenizer = found.tokenizer
    size = found.spec.vocab
    special = frozenset(i for i in tokenizer.special_ids if i < size)
    return GrammarVocabulary(
        [tokenizer.token_bytes(i, special=True) for i in range(size)],
        special,
        found.stop_ids,
        size,
        lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
