"""The composition root: settings to a running engine.  The only place that names concrete classes
of several packages.

Invariant: the memory plan is made, and shown through `notify`, before a tensor is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flyweight.backends import choose_backend, read_place
from flyweight.config import Limits, PackedCacheSettings, Settings
from flyweight.describe import (
    LoadListener,
    ModelDescription,
    SilentListener,
    check_quality,
    describe,
    find,
    fingerprint_text,
)
from flyweight.draft.drafter import Drafter, StoringDrafter
from flyweight.draft.latetokens import SLOT_BYTES
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
from flyweight.engine.grammars import Grammars
from flyweight.engine.metrics import EngineMetrics
from flyweight.engine.prefix import KeyBase
from flyweight.engine.recomputation import Recomputation
from flyweight.engine.runner import Model, Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.errors import ConfigError
from flyweight.external_cache import ExternalCacheSource, make_fingerprint
from flyweight.kv.blockbytes import BlockBytes
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import Prefault, allocate_kv
from flyweight.kv.residency import Residency
from flyweight.model_memory import judge_length, make_limits, make_memory_plan, measure_needs
from flyweight.models.adapters import list_kinds as adapter_kinds
from flyweight.models.adapters import pack_adapter
from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.ops.base import Ops, Packing
from flyweight.ops.operands import Weights
from flyweight.pairing import DraftDescription, find_draft, find_heads, judge_draft_length
from flyweight.parallel.nodes.identity import make_hello
from flyweight.parallel.nodes.leader import JoinedNodes, join_nodes
from flyweight.parallel.numa import Cores, assign_cores, stay_on
from flyweight.parallel.processes import LeadingRunner, RankProcesses
from flyweight.parallel.sharding import (
    cut_description,
    divide_cores,
    limit_to_stages,
    list_places,
)
from flyweight.passport import Quality
from flyweight.plan.machine import list_nodes, read_machine
from flyweight.plan.memory import MemoryPlan, Needs, SlotKinds
from flyweight.resources import EngineResources
from flyweight.sampling.grammar import Compiler, GrammarVocabulary
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.text.tokenizer import Tokenizer
from flyweight.weights.adapter import Adapter, open_adapter
from flyweight.weights.checkpoint import Checkpoint
from flyweight.weights.load import list_slot_kinds, load
from flyweight.weights.packed.folder import CacheFolder
from flyweight.weights.packed.keptfile import lay_out, make_key
from flyweight.weights.packed.shape import CompiledShape
from flyweight.weights.packed.shelf import LayerPrefetch, Note, Opener, UncachedWeights
from flyweight.wire import F32

if TYPE_CHECKING:
    from flyweight.parallel.connections import RankConnections


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.  `moving` and `ahead` are what else is done for it when there is time.
    `generation` is the checkpoint's generation_config.json, `isa` the instruction set that is
    computed with, `quality` what the model's passport says.  `fingerprint`, `quantisation` and
    `opened` are as `Checkpoint` has them, `text` is the tokenizer's fingerprint; `shape` is what
    `flyweight compile` prepared the weights for; `ranks` are the processes of the other ranks.
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
    fingerprint: str
    text: str
    quantisation: str
    opened: int
    shape: CompiledShape | None
    ranks: RankProcesses


def build(
    settings: Settings,
    notify: LoadListener | None = None,
    *,
    served: bool = False,
    resources: EngineResources | None = None,
) -> LoadedModel:
    """Loads a model and wires its engine.  The memory plan of a `served` one counts grammars, which
    any client may request, and the server's other processes.  With `resources`, other engines of
    this process share its threads and memory.  Raises `ConfigError` or `CheckpointError`.
    """
    tell: LoadListener = notify or SilentListener()
    _check_served(settings, served)
    whole = describe(path := find(settings, tell), settings.quantization)
    check_quality(settings, whole.quality)
    cores = assign_cores(list_nodes(), settings.local_ranks)
    settings = divide_cores(settings, read_machine().cores, cores)
    ops = _start_backend(settings, cores[0], resources)
    places, here = list_places(settings, whole, ops), read_place(settings, ops)
    found = cut_description(whole, places[0])
    adapters = [open_adapter(Path(path).expanduser()) for path in settings.adapters.values()]
    drafts, second = _open_drafts(settings, found, tell), find_draft(settings, found, tell)
    needs = _measure_all_needs(found, adapters, drafts, second, ops)
    memory = make_memory_plan(settings, needs, here, served=served, resources=resources)
    memory = limit_to_stages(memory, settings, (whole, places), here, ops)
    nodes, memory = _join_nodes(settings, whole, ops, memory, tell)
    _judge_lengths(settings, found, second, memory, tell)
    tell.show_plan(memory, whole)
    kv_dtype = memory.sizing.kv_dtype
    described = partial(make_fingerprint, found, ops, settings, memory.sizing)
    kept = ExternalCacheSource(settings, described, tell.note, resources)
    limits = make_limits(settings, memory, found.spec.vocab)
    ranks = RankProcesses(settings, path, places, (limits, kv_dtype), cores, nodes)
    with ranks.close_on_error(), stay_on(ranks.cores):
        weights, moving, shape = load_weights(settings, found, ops, tell)
        model, connections = _make_model(ranks, ops, found, weights, adapters, limits)
    layers = allocate_kv(found.spec, ops, limits, kv_dtype)
    fingerprint, text = found.checkpoint.fingerprint, fingerprint_text(found)
    keys = kept.make_keys(f"{fingerprint} {kv_dtype}", adapters)
    pair = _load_draft(second, settings, ops, memory, limits) if second else None
    drafter = _make_drafter(settings, limits, model, drafts, pair)
    draft_kv = drafter.layers if isinstance(drafter, StoringDrafter) else ()
    runner = Runner(model, ops, layers, drafter.taps if drafter else (), draft_kv)
    engine = _make_engine(settings, limits, runner, drafter, found, keys, kept)
    if connections is not None:
        _lead_ranks(engine, runner, ranks, connections, served)
    _close_files(found, adapters)
    return LoadedModel(
        engine=engine,
        moving=moving,
        ahead=Prefault(engine.scheduler.pool, [*layers, *draft_kv], ops),
        tokenizer=found.tokenizer,
        spec=whole.spec,
        memory=memory,
        limits=limits,
        stop_ids=found.stop_ids,
        generation=found.checkpoint.generation,
        isa=getattr(ops, "isa", "numpy"),
        quality=found.quality,
        fingerprint=fingerprint,
        text=text,
        quantisation=found.checkpoint.quantisation,
        opened=found.checkpoint.opened,
        shape=shape,
        ranks=ranks,
    )


def _lead_ranks(
    engine: Engine, runner: Runner, ranks: RankProcesses, connections: "RankConnections",
    served: bool,
) -> None:  # fmt: skip
    engine.runner = LeadingRunner(runner, connections, ranks.cores)
    engine.on_close = partial(ranks.end, connections)
    ranks.note_connected(served)


def _close_files(found: ModelDescription, adapters: Sequence[Adapter]) -> None:
    found.checkpoint.close()
    for adapter in adapters:
        adapter.close()


def _start_backend(settings: Settings, bound: Cores, resources: EngineResources | None) -> Ops:
    """The requested op table, whose threads stay on the cores they are bound to, if any."""
    with stay_on(bound):
        process = resources.process if resources else None
        return choose_backend(settings, read_machine().cores, process)


def _check_served(settings: Settings, served: bool) -> None:
    """Raises `ConfigError` where hosts would wait for a program."""
    if settings.nnodes > 1 and not served:
        raise ConfigError("needs a server", "nnodes", value=settings.nnodes,
                          hint="run: flyweight serve")  # fmt: skip


def _join_nodes(
    settings: Settings, whole: ModelDescription, ops: Ops, memory: MemoryPlan, tell: LoadListener
) -> tuple[JoinedNodes, MemoryPlan]:
    """The other hosts, and a plan that fits all of them."""
    nodes = join_nodes(settings, partial(make_hello, settings, whole, ops, memory), tell.note)
    return nodes, nodes.limit(memory)


def _judge_lengths(
    settings: Settings, found: ModelDescription, second: DraftDescription | None,
    memory: MemoryPlan, tell: LoadListener,
) -> None:  # fmt: skip
    judge_length(settings, found.spec, tell)
    if second is not None:
        judge_draft_length(second, memory.sizing.max_model_len, tell)


def _make_model(
    ranks: RankProcesses, ops: Ops, found: ModelDescription, weights: Any,
    adapters: Sequence[Adapter], limits: Limits,
) -> "tuple[Model, RankConnections | None]":  # fmt: skip
    """What this process computes of the model, and its connections to what computes the rest."""
    length = limits.max_model_len
    if not ranks.divided:
        low = [pack_adapter(adapter, found.published, ops) for adapter in adapters]
        return Decoder(Parts(ops, SingleProcess(), found.spec, weights, low), length), None
    from flyweight.parallel.connections import RankConnections  # imports torch

    ranks.wait()
    connections = RankConnections(ranks.keys, ranks.place, ranks.address)
    return connections.make_model(ops, found.spec, weights, length), connections


class LoadedWeights(NamedTuple):
    """A model's weights by slot, what moves once they are used, and what they were compiled for."""

    slots: dict[str, Weights | F32]
    moving: LayerPrefetch
    shape: CompiledShape | None


def load_weights(
    settings: Settings, found: ModelDescription, ops: Ops, tell: LoadListener
) -> LoadedWeights:
    """The model's weights, from the packed ones kept of an earlier start where there are any; else
    they are kept for the next.
    """
    opener = open_packed_cache(settings, found.checkpoint, found.plan, ops, tell.note)
    shelf, whole = opener.open() if opener else UncachedWeights(), False
    try:
        weights = load(found.checkpoint, found.plan, ops, tell.report_progress, shelf)
        whole = True
        return LoadedWeights(weights, shelf.moving, shelf.shape)
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


def _measure_all_needs(
    found: ModelDescription, adapters: Sequence[Adapter], drafts: DraftSource | None,
    second: DraftDescription | None, ops: Ops,
) -> Needs:  # fmt: skip
    """What the model, its adapters and what drafts for it need of memory."""
    needs = measure_needs(found.checkpoint, found.spec, found.plan, ops)
    needs = needs.add(_list_adapter_kinds(adapters, found), ops)
    if drafts:
        needs = needs.add_heads(drafts.kinds, drafts.stored, ops, drafts.name)
    if second is not None:
        own = second.found
        drafting = measure_needs(own.checkpoint, own.spec, own.plan, ops)
        needs = replace(needs, draft=replace(drafting, slot=SLOT_BYTES))
    return needs


def _list_adapter_kinds(adapters: Sequence[Adapter], found: ModelDescription) -> SlotKinds:
    """What adapters add to the model's matrices, for the memory plan."""
    return {f"adapter {i}": adapter_kinds(a, found.published) for i, a in enumerate(adapters)}


def _open_drafts(
    settings: Settings, found: ModelDescription, tell: LoadListener
) -> DraftSource | None:
    """What drafts are made with, checked before anything is loaded."""
    checkpoint, config = found.checkpoint, find_heads(settings, tell)
    base = DraftBase(found.spec, checkpoint.fingerprint, settings.block_size, checkpoint)
    return None if config is None else open_source(config, base)


def _load_draft(
    draft: DraftDescription, settings: Settings, ops: Ops, memory: MemoryPlan, limits: Limits
) -> SecondModel:
    """A draft model's weights, packed anew at every start, and its K/V."""
    found, sizing = draft.found, memory.sizing
    weights = load_weights(replace(settings, packed_cache=False), found, ops, SilentListener())
    model = Decoder(Parts(ops, SingleProcess(), found.spec, weights.slots), sizing.max_model_len)
    found.checkpoint.close()
    layers = allocate_kv(found.spec, ops, limits, sizing.kv_dtype)
    return SecondModel(model, layers, draft.ids, draft.spellers)


def _make_drafter(
    settings: Settings, limits: Limits, model: Model, drafts: DraftSource | None,
    pair: SecondModel | None,
) -> Drafter | None:  # fmt: skip
    """Its states are those of a whole model."""
    if settings.speculation is None:
        return None
    target = model if isinstance(model, Decoder) else None
    parts = DrafterParts(limits, limits.vocab, target, drafts, pair)
    return make_drafter(settings.speculation, parts)


def _make_engine(
    settings: Settings, limits: Limits, runner: Runner, drafter: Drafter | None,
    found: ModelDescription, keys: KeyBase, kept: ExternalCacheSource,
) -> Engine:  # fmt: skip
    """The engine; `keys` name the model and what its K/V is kept in."""
    watched = Residency(settings.kv_cache_metrics_sample) if settings.kv_cache_metrics else None
    pool = BlockPool(limits.blocks, limits.block_size, residency=watched)
    admission = ADMISSIONS[settings.scheduler](limits.max_num_seqs)
    scheduler = Scheduler(limits, pool, keys=keys, admission=admission)
    grammars = Grammars(lambda: Compiler(make_grammar_vocabulary(found)))
    adapters, metrics = tuple(settings.adapters), EngineMetrics()
    external = kept.make(pool, BlockBytes(runner.ops, runner.kv), metrics)
    engine = Engine(scheduler, runner, drafter, metrics, adapters, grammars, external)
    engine.drafts.calls.tap = runner.tap
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
