"""The composition root: settings to a running engine.  The only place that names concrete classes of several rooms.

Invariant: the memory plan is made, and shown through `notify`, before a tensor is read.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from flyweight.config import LEAST_MODEL_LEN, Limits, Settings
from flyweight.draft.ngram import NgramDrafter
from flyweight.engine.engine import Engine
from flyweight.engine.metrics import Metrics
from flyweight.engine.runner import Runner
from flyweight.engine.scheduler import Scheduler
from flyweight.errors import CheckpointError, ConfigError
from flyweight.kv.blocks import BlockPool
from flyweight.kv.memory import kv_memory
from flyweight.models.decoder import Decoder, Solo
from flyweight.models.registry import Family, family
from flyweight.ops.base import Ops
from flyweight.plan.machine import Machine, held, machine, parse_bytes
from flyweight.plan.memory import MemoryPlan, Sizing, plan_memory
from flyweight.spec import ModelSpec, WeightPlan
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.load import load, slot_kinds

ASSETS = Path(__file__).parent / "assets"
DEFAULT_MODEL = "stories"


class Notify(Protocol):
    """Who is told while a model loads; every method may do nothing."""

    def planned(self, plan: MemoryPlan, spec: ModelSpec) -> None: ...
    def progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...


class Silent:
    """Says nothing."""

    def planned(self, plan: MemoryPlan, spec: ModelSpec) -> None: ...
    def progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Described:
    """A model looked at, not loaded: what `flyweight inspect` shows."""

    checkpoint: Checkpoint
    spec: ModelSpec
    plan: WeightPlan
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run.  `stop_ids` end a sequence unless ignore_eos; `generation` are the checkpoint's defaults."""

    engine: Engine
    tokenizer: Tokenizer
    spec: ModelSpec
    memory: MemoryPlan
    limits: Limits
    stop_ids: frozenset[int]
    generation: dict[str, Any]
    threads: int


def find(model: str | None) -> Path:
    """The path of a model: None or "stories" is the one inside the package."""
    if model in (None, DEFAULT_MODEL):
        return ASSETS / f"{DEFAULT_MODEL}.gguf"
    assert model is not None
    path = Path(model).expanduser()
    if not path.exists():
        raise CheckpointError(
            f"model {model!r} is not a file or directory here; "
            f"give a .gguf file, a directory with config.json, or {DEFAULT_MODEL!r}"
        )
    return path


def describe(model: str | None) -> Described:
    """Opens and checks a model's files and loads its tokenizer; reads no weights."""
    checkpoint = open_checkpoint(find(model))
    kind = family(checkpoint.config)
    spec = _spec(checkpoint, kind)
    return Described(checkpoint, spec, kind.plan(spec), load_tokenizer(checkpoint.tokenizer_source))


def backend(settings: Settings, cores: int) -> Ops:
    """The op table asked for: native kernels, or the NumPy reference."""
    if settings.backend == "reference":
        from flyweight.ops.reference import ReferenceOps

        return ReferenceOps(settings.activations)
    from flyweight.ops.cpu import CpuOps

    return CpuOps(settings.threads or cores, settings.isa, settings.activations)


def build(settings: Settings, notify: Notify | None = None) -> Loaded:
    """Loads a model and wires its engine.  Raises `ConfigError` or `CheckpointError`."""
    tell: Notify = notify or Silent()
    here = machine()
    found = describe(settings.model)
    ops = backend(settings, here.cores)
    length = _model_length(settings, found.spec, tell)
    memory = memory_plan(settings, found, ops, here, length)
    tell.planned(memory, found.spec)
    weights = load(found.checkpoint, found.plan, ops, tell.progress)
    model = Decoder(found.spec, weights, ops, Solo())
    limits = Limits(
        max_model_len=memory.sizing.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        blocks=memory.blocks,
        prefix_caching=settings.enable_prefix_caching,
        draft_tokens=settings.draft_tokens,
    )
    engine = _engine(settings, limits, model, ops, found)
    found.checkpoint.close()
    stop_ids = frozenset(found.checkpoint.eos_ids) | frozenset(found.tokenizer.eos_ids)
    threads = settings.threads or here.cores
    return Loaded(
        engine, found.tokenizer, found.spec, memory, limits, stop_ids, found.checkpoint.generation, threads
    )


def memory_plan(
    settings: Settings, found: Described, ops: Ops, here: Machine, length: int | None
) -> MemoryPlan:
    """The memory plan at `length` tokens; None asks for the longest context that fits, up to the model's own."""
    allowed = parse_bytes(settings.memory_limit, here.total)
    bounds = (held(), min(allowed, held() + here.available))
    kinds = slot_kinds(found.checkpoint, found.plan)
    sizing = Sizing(
        max_model_len=length or found.spec.context,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        kv_dtype=settings.kv_cache_dtype,
        draft_tokens=settings.draft_tokens,
        blocks=settings.blocks,
    )
    while True:
        try:
            return plan_memory(found.spec, kinds, ops, sizing, bounds)
        except ConfigError:
            if length is not None or sizing.max_model_len <= LEAST_MODEL_LEN:
                raise
        shorter = max(LEAST_MODEL_LEN, sizing.max_model_len * 3 // 4)
        sizing = replace(sizing, max_model_len=shorter)


def _spec(checkpoint: Checkpoint, kind: Family) -> ModelSpec:
    """A checkpoint that carries its own head has one, whatever its config says of tying."""
    config = dict(checkpoint.config)
    if "lm_head.weight" not in checkpoint.tensors:
        config["tie_word_embeddings"] = True
    elif checkpoint.config.get("tie_word_embeddings") is None:
        config["tie_word_embeddings"] = False
    factors = checkpoint.tensors.get("rope_freqs.weight")
    if factors is not None:
        values = [float(x) for x in checkpoint.read(factors.name, 0, factors.shape[0])]
        config["rope_scaling"] = {"rope_type": "factors", "factors": values}
    return kind.spec(config)


def _model_length(settings: Settings, spec: ModelSpec, tell: Notify) -> int | None:
    asked = settings.max_model_len
    if asked is not None and asked > spec.context:
        tell.warn(
            f"max_model_len = {asked} is above the {spec.context} tokens the model was made for; "
            "quality may fall beyond them"
        )
    return asked


def _engine(settings: Settings, limits: Limits, model: Decoder, ops: Ops, found: Described) -> Engine:
    layers = kv_memory(found.spec, ops, limits, settings.kv_cache_dtype)
    pool = BlockPool(limits.blocks, limits.block_size)
    scheduler = Scheduler(limits, pool, fingerprint=found.checkpoint.fingerprint)
    drafter = NgramDrafter() if settings.draft_tokens else None
    return Engine(scheduler, Runner(model, ops, layers), drafter, Metrics())

