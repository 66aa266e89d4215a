"""Finds a model's files and describes them: its spec, the plan of its weights, its tokenizer.

Invariant: reads headers and the vocabulary, no weights.  Imports nothing that computes, as the
server's front end and the commands that only look at a model start with it.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from flyweight.config import Settings, parse_bytes
from flyweight.errors import CheckpointError, ConfigError, nearest
from flyweight.models.registry import Family, find_family
from flyweight.passport import UNKNOWN, Quality, QualityLimit
from flyweight.plan.machine import Machine, measure_resident, read_machine
from flyweight.spec import KV_TYPES, Files, ModelSpec, WeightPlan
from flyweight.text.fingerprint import compute_fingerprint
from flyweight.text.tokenizer import Tokenizer, load_tokenizer
from flyweight.validation.untrusted import spell
from flyweight.weights.checkpoint import Checkpoint, choose_format, open_checkpoint
from flyweight.weights.folder import SAME_METHODS, TORCH
from flyweight.weights.formats.claims import MatrixScheme
from flyweight.weights.gguf import read_gguf
from flyweight.weights.hub.names import HubName, parse_hub_name
from flyweight.weights.load import list_slot_kinds
from flyweight.weights.passports import read_quality

if TYPE_CHECKING:
    from flyweight.plan.memory import MemoryPlan

ASSETS = Path(__file__).parent / "assets"
DEFAULT_MODEL = "stories"
INSIDE = (DEFAULT_MODEL, "stories-draft")  # models in the package, by name
NOTHING: Mapping[str, Any] = MappingProxyType({})
TokenizerReader = Callable[[Path | Mapping[str, Any]], Tokenizer]
HEADS = {"lm_head.weight", "embed_out.weight"}
EXTERNAL_CACHE_OPTIONS = (
    "prefix-cache-dir", "prefix-cache-gb", "swap-space", "prefix-cache-peers",
    "prefix-cache-listen", "prefix-cache-secret-file", "prefix-cache-peer-rate",
)  # fmt: skip


class LoadListener(Protocol):
    """Receives the progress of a load; every method may do nothing."""

    def show_plan(self, plan: "MemoryPlan", found: "ModelDescription") -> None: ...
    def report_progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...
    def show_download(self, file: str, done: int, total: int) -> None: ...


class SilentListener:
    """Says nothing."""

    def show_plan(self, plan: "MemoryPlan", found: "ModelDescription") -> None: ...
    def report_progress(self, done: int, total: int) -> None: ...
    def warn(self, message: str) -> None: ...
    def note(self, message: str) -> None: ...
    def show_download(self, file: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model looked at, not loaded: what `flyweight inspect` shows.  `stop_ids` end a sequence
    unless ignore_eos: all that its files name.  Adapters know the model as `published`.  `quality`
    is what its passport says.
    """

    checkpoint: Checkpoint
    spec: ModelSpec
    plan: WeightPlan
    published: WeightPlan
    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    quality: Quality = UNKNOWN


def find(settings: Settings, tell: LoadListener | None = None) -> Path:
    """The path of a model: None or a name of INSIDE is one in the package; what is a file or a
    folder here is that; else a name on the Hub, whose files are fetched where the cache lacks them.
    Raises `ConfigError` where its files are not of the requested kind.
    """
    return choose_format(_find_checkpoint(settings, tell or SilentListener()), settings.load_format)


def _find_checkpoint(settings: Settings, tell: LoadListener) -> Path:
    model = DEFAULT_MODEL if settings.model is None else settings.model
    path = find_here(model)
    if path is not None:
        return path
    name = parse_hub_name(str(model), settings.revision)
    if name is None:
        raise CheckpointError(
            f"model {str(model)!r} is not a file or directory here; give a .gguf file, "
            "a directory with config.json and *.safetensors or pytorch_model.bin, a name on the "
            f"Hugging Face Hub (org/name), or {DEFAULT_MODEL!r}{nearest(str(model), INSIDE)}"
        )
    return fetch(name, settings, tell)


def find_here(model: str | os.PathLike[str]) -> Path | None:
    """The path of a model in the package, or in a file or folder here; None for other names."""
    if model in INSIDE:
        return ASSETS / f"{model}.gguf"
    path = Path(os.path.expanduser(model))
    return path if os.path.exists(path) else None


def fetch(name: HubName, settings: Settings, tell: LoadListener, *, newest: bool = False) -> Path:
    """A model of the Hub: from the cache, or its newest files."""
    from flyweight.weights.hub.find import HubSearch  # its client takes long to import
    from flyweight.weights.hub.find import find as find_on_hub

    here = read_machine()
    room = (
        count_allowed_bytes(settings, here, measure_resident()) * 9 // 10
    )  # the rest is for K/V and arrays
    search = HubSearch(room, settings.offline, newest, find_family)
    return find_on_hub(name, search, tell)


def describe(
    path: Path,
    quantization: Mapping[str, Any] = NOTHING,
    read_tokenizer: TokenizerReader = load_tokenizer,
) -> ModelDescription:
    """Opens and checks a model's files, which must have the requested `quantization`, and loads its
    tokenizer; reads no weights.
    """
    checkpoint = open_checkpoint(path)
    _check_quantisation(checkpoint, quantization)
    with _prefix_errors(path):
        kind = find_family(checkpoint.config)
        spec = read_spec(checkpoint, kind)
        plan = read_plan(checkpoint, kind, spec)
        list_slot_kinds(checkpoint, plan)  # refuses a file that does not fit the plan
        tokenizer = read_tokenizer(checkpoint.tokenizer_source)
    ends = stop_ids(checkpoint, tokenizer, spec)
    published, quality = kind.plan(spec, Files()), read_quality(checkpoint)
    return ModelDescription(checkpoint, spec, plan, published, tokenizer, ends, quality)


def check_quality(settings: Settings, quality: Quality) -> None:
    """Raises `ConfigError` where the model is above `max_kld`, or its figure is unknown."""
    if settings.max_kld is None:
        return
    name = settings.kv_cache_dtype
    kv_type = name if name in KV_TYPES and KV_TYPES[name].coded else ""
    model = str(settings.model or DEFAULT_MODEL)
    quality.check(QualityLimit(settings.max_kld, model, kv_type, settings.activations))


def _check_quantisation(checkpoint: Checkpoint, requested: Mapping[str, Any]) -> None:
    """Raises `ConfigError` where the files are quantised in another way than requested."""
    if not requested:
        return
    _check_keys(requested)
    method = checkpoint.quantisation or ("gguf" if checkpoint.format == "gguf" else "")
    if requested["method"] != SAME_METHODS.get(method, method):
        held = f"is quantised as {method}" if method else "is not quantised"
        raise ConfigError(
            f", and {checkpoint.path.name} {held}; leave it out, or give a model whose files are "
            f"{requested['method']}",
            "quantization",
            value=requested["method"],
        )
    for key in [key for key in requested if key != "method"]:
        values = list(dict.fromkeys(getattr(one, key) for one in checkpoint.schemes))
        given, known = f"has {key} = {spell(requested[key])}", [x for x in values if x is not None]
        if not known:
            raise ConfigError(f"{given}, which means nothing for {method}; leave it out",
                              "quantization")  # fmt: skip
        if not any(type(x) is type(requested[key]) and x == requested[key] for x in known):
            held = " and ".join(map(spell, known))
            raise ConfigError(f"{given}, and {checkpoint.path.name} has {held}; leave it out",
                              "quantization")  # fmt: skip


def _check_keys(requested: Mapping[str, Any]) -> None:
    keys = ("method", *(one.name for one in fields(MatrixScheme)))
    for key in requested:
        if key not in keys:
            near = nearest(str(key), keys)
            raise ConfigError(
                f"has {spell(key)}, which is unknown{near}", "quantization", allowed=", ".join(keys)
            )
    if "method" not in requested:
        raise ConfigError("has no method", "quantization", allowed="gptq, awq, fp8, ...")


def describe_scheduler(scheduler: str) -> str:
    """When requests start."""
    if scheduler == "static":
        return "no request starts until all of the batch before have ended"
    return "a request starts as soon as there is room"


def describe_external_cache(settings: Settings, replicas: bool = False) -> str:
    """Where blocks are kept that the K/V cache has no room for."""
    each = " for each replica" if replicas else ""
    parts = [f"swap space, {settings.swap_space:g} GiB{each}"] if settings.swap_space else []
    if settings.prefix_cache_dir is not None:
        room = f"{settings.prefix_cache_gb:g} GiB{each}"
        parts.append(f"{os.fspath(settings.prefix_cache_dir)}, {room}")
    if settings.prefix_cache_listen:
        parts.append(f"served at {settings.prefix_cache_listen}")
    if settings.prefix_cache_peers:
        parts.append(f"peers {settings.prefix_cache_peers}")
    return " and ".join(parts) or "off"


def choose_activations(settings: Settings) -> str:
    """The precision of activations; a GPU has no int8 ones, so the default is bf16 there."""
    default_on_gpu = settings.backend == "cuda" and settings.activations == "int8"
    return "bf16" if default_on_gpu else settings.activations


def describe_activations(activations: str) -> str:
    """What the precision of activations applies to."""
    if activations == "int8":
        return "type of the inputs of integer weights; bf16 or f32 for others"
    return "type of the inputs of matrix products"


def describe_kernels(opened: int) -> str:
    """What a quantised folder's matrices are read by, `opened` of them by no kernel: the words of
    all that show it.
    """
    if opened:
        return f"no kernel reads the codes of {opened} matrices, which are kept as bf16"
    return "kernels read the codes of every matrix"


def stop_ids(checkpoint: Checkpoint, tokenizer: Tokenizer, spec: ModelSpec) -> frozenset[int]:
    """All that end a sequence; those past the vocabulary can never be drawn."""
    ends = {*checkpoint.eos_ids, *tokenizer.eos_ids}
    return frozenset(i for i in ends if i < spec.vocab)


def fingerprint_text(found: ModelDescription) -> str:
    """A hash of the tokenizer, the chat templates and the ids that end a sequence."""
    return compute_fingerprint(found.checkpoint.tokenizer_source, found.stop_ids)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model, of a GGUF file that is a vocabulary alone, or in a file of its
    own.
    """
    with _prefix_errors(path):
        if path.suffix == ".gguf":
            return load_tokenizer(read_gguf(path).metadata)
        weights = path.suffix in (".safetensors", ".bin") or path.name == TORCH.index
        return load_tokenizer(path.parent if weights else path)


def read_spec(checkpoint: Checkpoint, kind: Family) -> ModelSpec:
    """Where the config does not say whether embedding and head are one matrix, the file does."""
    config = dict(checkpoint.config)
    if config.get("tie_word_embeddings") is None:
        config["tie_word_embeddings"] = not checkpoint.tensors.keys() & HEADS
    return kind.read_spec(config)


def read_plan(checkpoint: Checkpoint, kind: Family, spec: ModelSpec) -> WeightPlan:
    return kind.plan(
        spec, Files(checkpoint.converted, frozenset(checkpoint.tensors), checkpoint.joined)
    )


def count_allowed_bytes(settings: Settings, here: Machine, held: int) -> int:
    """Bytes the process may hold."""
    return min(parse_bytes(str(settings.memory_limit), here.total), held + here.available)


@contextmanager
def _prefix_errors(path: Path) -> Iterator[None]:
    """Puts the model's path before errors that know only a key of its metadata."""
    try:
        yield
    except CheckpointError as error:
        text = str(error)
        if str(path) in text:
            raise
        raise CheckpointError(f"{path}: {text}") from None
