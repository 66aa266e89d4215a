"""The composition root: settings to a running engine.  The only place that names concrete classes
of several rooms.

Invariant: the memory plan is made, and shown through `notify`, before a tensor is read.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from flyweight.config import LEAST_MODEL_LEN, KeptWeights, Limits, Settings, parse_bytes
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.engine import Engine
from flyweight.engine.grammars import LIVE_BYTES, Grammars
from flyweight.engine.metrics import Metrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.errors import CheckpointError, ConfigError
from flyweight.kv.ahead import Ahead
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import kv_memory
from flyweight.kv.residency import Residency
from flyweight.models.adapters import kinds as adapter_kinds
from flyweight.models.adapters import low_rank
from flyweight.models.decoder import Decoder, Solo
from flyweight.models.linear import Parts
from flyweight.models.registry import Family, family
from flyweight.ops.base import Ops, Packing, Weights
from flyweight.plan.machine import Machine, machine, resident
from flyweight.plan.memory import MemoryPlan, Needs, Sizing, SlotKinds, block_bytes, plan_memory
from flyweight.sampling.grammar import Compiler, Vocabulary, compiler_nbytes
from flyweight.spec import Files, ModelSpec, WeightPlan
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.adapter import Adapter, open_adapter
from flyweight.weights.checkpoint import Checkpoint, format_of, open_checkpoint
from flyweight.weights.gguf import read_gguf
from flyweight.weights.hub.names import HubName, hub_name
from flyweight.weights.load import load, slot_kinds
from flyweight.weights.packed.folder import Folder
from flyweight.weights.packed.layout import key_of, lay_out
from flyweight.weights.packed.moving import Moving
from flyweight.weights.packed.shelf import Bare, Note, Opener
from flyweight.wire import F32

ASSETS = Path(__file__).parent / "assets"
DEFAULT_MODEL = "stories"
HEADS = {"lm_head.weight", "embed_out.weight"}


class Notify(Protocol):
    """Who is told while a model loads; every method may do nothing."""

    def planned(self, plan: MemoryPlan, found: "Described") -> None: ...
    def progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...
    def fetching(self, file: str, done: int, total: int) -> None: ...


class Silent:
    """Says nothing."""

    def planned(self, plan: MemoryPlan, found: "Described") -> None: ...
    def progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...
    def fetching(self, file: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Described:
    """A model looked at, not loaded: what `flyweight inspect` shows.  `stop_ids` end a sequence
    unless ignore_eos: all that its files name.  Adapters know the model as `published`.
    """

    checkpoint: Checkpoint
    spec: ModelSpec
    plan: WeightPlan
    published: WeightPlan
    tokenizer: Tokenizer
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run.  `moving` and `ahead` are what else is done for it when there is time.
    `generation` is the checkpoint's generation_config.json, `isa` the instruction set that is
    computed with.
    """

    engine: Engine
    moving: Moving
    ahead: Ahead
    tokenizer: Tokenizer
    spec: ModelSpec
    memory: MemoryPlan
    limits: Limits
    stop_ids: frozenset[int]
    generation: dict[str, Any]
    isa: str


def find(settings: Settings, tell: Notify | None = None) -> Path:
    """The path of a model: None or "stories" is the one inside the package; what is a file or a
    folder here is that; else a name on the Hub, whose files are fetched where the cache lacks them.
    Raises `ConfigError` where its files are not of the kind asked for.
    """
    path = _found(settings, tell or Silent())
    kind = format_of(path)
    if settings.load_format not in ("auto", kind):
        raise ConfigError(
            f"load_format = {settings.load_format!r}, and {path.name} holds {kind}; leave it (or "
            f"quantization) out, or give a model whose files are {settings.load_format}"
        )
    return path


def _found(settings: Settings, tell: Notify) -> Path:
    model = settings.model
    if model is None or model == DEFAULT_MODEL:
        return ASSETS / f"{DEFAULT_MODEL}.gguf"
    path = os.path.expanduser(model)
    if os.path.exists(path):
        return Path(path)
    name = hub_name(str(model), settings.revision)
    if name is None:
        raise CheckpointError(
            f"model {str(model)!r} is not a file or directory here; give a .gguf file, "
            "a directory with config.json and *.safetensors or pytorch_model.bin, a name on the "
            f"Hugging Face Hub (org/name), or {DEFAULT_MODEL!r}"
        )
    return fetch(name, settings, tell)


def fetch(name: HubName, settings: Settings, tell: Notify, *, newest: bool = False) -> Path:
    """A model of the Hub: from the cache, or its newest files."""
    from flyweight.weights.hub.find import Search  # its client takes long to import
    from flyweight.weights.hub.find import find as find_on_hub

    here = machine()
    room = _allowed(settings, here, resident()) * 9 // 10  # the rest is for K/V and arrays
    search = Search(room, settings.offline, newest, family)
    return find_on_hub(name, search, tell)


def describe(path: Path) -> Described:
    """Opens and checks a model's files and loads its tokenizer; reads no weights."""
    checkpoint = open_checkpoint(path)
    with _named(path):
        kind = family(checkpoint.config)
        spec = read_spec(checkpoint, kind)
        plan = read_plan(checkpoint, kind, spec)
        slot_kinds(checkpoint, plan)  # refuses a file that does not fit the plan
        tokenizer = load_tokenizer(checkpoint.tokenizer_source)
    ends = stop_ids(checkpoint, tokenizer, spec)
    return Described(checkpoint, spec, plan, kind.plan(spec, Files()), tokenizer, ends)


def stop_ids(checkpoint: Checkpoint, tokenizer: Tokenizer, spec: ModelSpec) -> frozenset[int]:
    """All that end a sequence; those past the vocabulary can never be drawn."""
    ends = {*checkpoint.eos_ids, *tokenizer.eos_ids}
    return frozenset(i for i in ends if i < spec.vocab)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model, of a GGUF file that is a vocabulary alone, or in a file of its
    own.
    """
    with _named(path):
        if path.suffix == ".gguf":
            return load_tokenizer(read_gguf(path).metadata)
        return load_tokenizer(path.parent if path.suffix in (".safetensors", ".bin") else path)


def backend(settings: Settings, cores: int) -> Ops:
    """The op table asked for: native kernels, or the NumPy reference."""
    if settings.backend == "reference":
        from flyweight.ops.reference import ReferenceOps

        return ReferenceOps(settings.activations)
    from flyweight.ops.cpu import CpuOps

    return CpuOps(settings.threads or cores, settings.isa, settings.activations)


def build(settings: Settings, notify: Notify | None = None, *, grammars: bool = False) -> Loaded:
    """Loads a model and wires its engine; anybody may ask a server for `grammars`, and its memory
    plan counts them.  Raises `ConfigError` or `CheckpointError`.
    """
    tell: Notify = notify or Silent()
    here = machine()
    found = describe(find(settings, tell))
    ops = backend(settings, here.cores)
    adapters = [open_adapter(Path(path).expanduser()) for path in settings.adapters.values()]
    asked = needs(found.checkpoint, found.spec, found.plan, ops)
    asked = asked.beside(_adapter_kinds(adapters, found), ops)
    room = LIVE_BYTES + compiler_nbytes(found.spec.vocab) if grammars else 0
    memory = memory_plan(settings, asked, here, room)
    judge_length(settings, found.spec, tell)
    tell.planned(memory, found)
    weights, moving = load_kept(settings, found, ops, tell)
    low = [low_rank(adapter, found.published, ops) for adapter in adapters]
    parts = Parts(ops, Solo(), found.spec, weights, low)
    model = Decoder(parts, memory.sizing.max_model_len)
    limits = Limits(
        max_model_len=memory.sizing.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        blocks=memory.blocks,
        prefix_caching=settings.enable_prefix_caching,
        max_chunk=settings.long_prefill_token_threshold or None,
        draft_tokens=settings.draft_tokens,
        scored=settings.prompt_logprob_rows,
    )
    layers = kv_memory(found.spec, ops, limits, memory.sizing.kv_dtype)
    engine = _engine(settings, limits, Runner(model, ops, layers), found)
    found.checkpoint.close()
    for adapter in adapters:
        adapter.close()
    return Loaded(
        engine=engine,
        moving=moving,
        ahead=Ahead(engine.scheduler.pool, layers, ops),
        tokenizer=found.tokenizer,
        spec=found.spec,
        memory=memory,
        limits=limits,
        stop_ids=found.stop_ids,
        generation=found.checkpoint.generation,
        isa=getattr(ops, "isa", "numpy"),
    )


def load_kept(
    settings: Settings, found: Described, ops: Ops, tell: Notify
) -> tuple[dict[str, Weights | F32], Moving]:
    """The model's weights, from the packed ones kept of an earlier start where there are any; else
    they are kept for the next.
    """
    opener = kept_weights(settings, found.checkpoint, found.plan, ops, tell.note)
    shelf, whole = opener.open() if opener else Bare(), False
    try:
        weights = load(found.checkpoint, found.plan, ops, tell.progress, shelf)
        whole = True
        return weights, shelf.moving
    finally:
        shelf.close(whole)


def kept_weights(
    settings: Settings, checkpoint: Checkpoint, plan: WeightPlan, ops: Ops, note: Note
) -> Opener | None:
    """The way to a model's kept packed weights; none where they are not wanted, or the backend
    packs nothing that could lie in a file.
    """
    room = KeptWeights.of_environment()
    if not settings.packed_cache or settings.backend != "cpu" or room.folder is None:
        return None
    packing = cast(Packing, ops)
    key = key_of(checkpoint.fingerprint, checkpoint.stamps, plan, packing.packing)
    matrices = [
        (slot, (shape[0], shape[1]), kind)
        for slot, parts in slot_kinds(checkpoint, plan).items()
        for shape, kind in parts
        if len(shape) == 2
    ]
    layout = lay_out(key, matrices, packing.packed_nbytes)
    return Opener(Folder(room.folder, room.room), layout, packing, note, machine().cores)


def _adapter_kinds(adapters: Sequence[Adapter], found: Described) -> SlotKinds:
    """What adapters add to the model's matrices, for the memory plan."""
    return {f"adapter {i}": adapter_kinds(a, found.published) for i, a in enumerate(adapters)}


def needs(checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, ops: Ops) -> Needs:
    """What a model asks of memory."""
    return Needs.of(spec, slot_kinds(checkpoint, plan), ops)


def memory_plan(settings: Settings, asked: Needs, here: Machine, grammars: int = 0) -> MemoryPlan:
    """The memory plan at the context asked for, or at the longest that fits, up to the model's;
    `grammars` bytes are for grammars.
    """
    held = resident()
    length = settings.max_model_len or asked.spec.context
    kv_dtype = asked.kv_dtype if settings.kv_cache_dtype == "auto" else settings.kv_cache_dtype
    blocks = settings.blocks or _bought(settings, asked.spec, kv_dtype)
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
        scored=settings.prompt_logprob_rows,
        blocks=blocks,
        grammars=grammars,
        scores=asked.spec.vocab if settings.max_logprobs < 0 else settings.max_logprobs,
    )
    least = length if settings.max_model_len else LEAST_MODEL_LEN
    return plan_memory(asked, sizing, (held, _allowed(settings, here, held)), least)


def _bought(settings: Settings, spec: ModelSpec, kv_dtype: str) -> int:
    """K/V blocks for kv_cache_memory_bytes; 0 where they have no limit of their own."""
    if not settings.kv_cache_memory_bytes:
        return 0
    block = block_bytes(spec, settings.block_size, kv_dtype)
    least = -(-(settings.max_model_len or 1) // settings.block_size)
    blocks = settings.kv_cache_memory_bytes // block
    if blocks < least:
        raise ConfigError(
            f"kv_cache_memory_bytes = {settings.kv_cache_memory_bytes} hold {blocks} blocks of "
            f"{block} bytes, less than one sequence; nearest valid: {least * block}"
        )
    return blocks


def _allowed(settings: Settings, here: Machine, held: int) -> int:
    """Bytes the process may hold."""
    return min(parse_bytes(str(settings.memory_limit), here.total), held + here.available)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Puts the model's path before errors that know only a key of its metadata."""
    try:
        yield
    except CheckpointError as error:
        text = str(error)
        if str(path) in text:
            raise
        raise CheckpointError(f"{path}: {text}") from None


def read_plan(checkpoint: Checkpoint, kind: Family, spec: ModelSpec) -> WeightPlan:
    return kind.plan(spec, Files(checkpoint.converted, frozenset(checkpoint.tensors)))


def read_spec(checkpoint: Checkpoint, kind: Family) -> ModelSpec:
    """Where the config does not say whether embedding and head are one matrix, the file does."""
    config = dict(checkpoint.config)
    if config.get("tie_word_embeddings") is None:
        config["tie_word_embeddings"] = not checkpoint.tensors.keys() & HEADS
    return kind.spec(config)


def judge_length(settings: Settings, spec: ModelSpec, tell: Notify) -> None:
    asked = settings.max_model_len
    if asked is None or asked <= spec.context:
        return
    if spec.positions:
        raise ConfigError(
            f"max_model_len = {asked} is above the {spec.positions} positions this model has "
            f"learned; nearest valid: {spec.positions}"
        )
    tell.warn(
        f"max_model_len = {asked} is above the {spec.context} tokens the model was made for; "
        "quality may fall beyond them"
    )


def _drafter(settings: Settings) -> NgramDrafter | None:
    if not settings.draft_tokens:
        return None
    return NgramDrafter(settings.prompt_lookup_max, settings.prompt_lookup_min)


def _engine(settings: Settings, limits: Limits, runner: Runner, found: Described) -> Engine:
    watched = Residency(settings.kv_cache_metrics_sample) if settings.kv_cache_metrics else None
    pool = BlockPool(limits.blocks, limits.block_size, residency=watched)
    scheduler = Scheduler(limits, pool, fingerprint=found.checkpoint.fingerprint)
    drafter = _drafter(settings)
    grammars = Grammars(lambda: Compiler(vocabulary(found)))
    return Engine(scheduler, runner, drafter, Metrics(), tuple(settings.adapters), grammars)


def vocabulary(found: Described) -> Vocabulary:
    """A model's tokens as grammars need them."""
    tokenizer = found.tokenizer
    size = found.spec.vocab
    special = frozenset(i for i in tokenizer.special_ids if i < size)
    return Vocabulary(
        [tokenizer.token_bytes(i, special=True) for i in range(size)],
        special,
        found.stop_ids,
        size,
        lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
