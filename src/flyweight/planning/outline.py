"""A model's outline: its spec and the kinds of its weights, from headers or from config.json alone.

Invariant: no tensor is read, and of a Hub name no more is fetched than says the shape.  What a
config does not say is assumed, and `basis` says so.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flyweight.config import Settings
from flyweight.describe import DEFAULT_MODEL, INSIDE, LoadListener, find, read_plan, read_spec
from flyweight.errors import CheckpointError, nearest
from flyweight.models.registry import find_family
from flyweight.ops.grouped import count_block
from flyweight.passport import UNKNOWN, Quality
from flyweight.plan.memory import SlotKinds
from flyweight.plan.roofline import EXPERT
from flyweight.planning.published import CONFIGS
from flyweight.spec import Files, ModelSpec, SlotPlan, WeightPlan
from flyweight.text.absent import load_any_tokenizer
from flyweight.text.tokenizer import Tokenizer
from flyweight.validation.untrusted import read_json
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.hub.names import HubName, parse_hub_name
from flyweight.weights.load import list_slot_kinds
from flyweight.weights.passports import read_quality

# What matrices would be packed as with so many bits, the kinds of `flyweight quantize`.
KINDS_BY_BITS: Mapping[float, str] = {
    32: "f32", 16: "bf16", 8: "q8_0", 6: "q6_k", 5: "q5_k", 4: "q4_k", 3: "q3_k", 2: "q2_k",
}  # fmt: skip
SMALLER = {"q6_k": "q8_0", "q5_k": "q5_0", "q4_k": "q4_0", "q3_k": "q4_0", "q2_k": "q4_0"}
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """`kinds` are what the weights of `plan` would be packed as, `basis` how they are known; `path`
    is where the model can be loaded from, None where it cannot.  The `tokenizer` is kept so that
    its memory counts, as when the model is served.
    """

    name: str
    spec: ModelSpec
    plan: WeightPlan
    kinds: SlotKinds
    basis: str
    quality: Quality = UNKNOWN
    path: Path | None = None
    tokenizer: Tokenizer | None = None

    @property
    def params(self) -> int:
        return sum(_count_elements(slot) for slot in self.plan.slots)

    @property
    def active_params(self) -> int:
        """Those that a token meets: of experts only the chosen ones."""
        return int(sum(_count_elements(slot) * self._find_share(slot) for slot in self.plan.slots))

    def _find_share(self, slot: SlotPlan) -> float:
        if not EXPERT.fullmatch(slot.name):
            return 1.0
        layer = self.spec.layers[int(slot.name.split(".")[1])]
        return layer.moe.route.top / layer.moe.route.experts if layer.moe else 1.0


def outline_model(settings: Settings, tell: LoadListener) -> ModelOutline:
    """The outline of a path, of a bundled model, of one of `published.py`, or of a Hub name.
    Raises `FlyweightError`.
    """
    model = str(settings.model or DEFAULT_MODEL)
    path = Path(model).expanduser()
    if model.lower() in CONFIGS and not path.exists():
        return _outline_config(CONFIGS[model.lower()], model.lower(), "its published dimensions")
    if (path / "config.json").is_file() and not any(map(_is_weight, path.iterdir())):
        return _outline_config(read_json(path / "config.json"), path.name)
    name = None if path.exists() else parse_hub_name(model, settings.revision)
    if name is None and not path.exists() and model not in INSIDE:
        raise CheckpointError(
            f"model {model!r} is neither a file or folder here, nor a name on the Hub (org/name), "
            f"nor a well-known model: {', '.join(CONFIGS)}{nearest(model.lower(), CONFIGS)}"
        )
    if name is None or _is_cached(name):
        found = find(settings, tell)
        return replace(_outline_files(found, model), path=found)
    return _outline_remote(name, settings.offline, tell)


def assume_bits(outline: ModelOutline, bits: float) -> SlotKinds:
    """The kinds of its weights, with every matrix kept in so many bits, of `KINDS_BY_BITS`."""
    kind = KINDS_BY_BITS[bits]
    return {slot.name: [(slot.shape, _fit_kind(slot, kind))] for slot in outline.plan.slots}


def _is_weight(path: Path) -> bool:
    return path.suffix in (".safetensors", ".gguf", ".bin", ".pt")


def _is_cached(name: HubName) -> bool:
    from flyweight.weights.hub.find import find_cached  # its client takes long to import

    return find_cached(name) is not None


def _outline_remote(name: HubName, offline: bool, tell: LoadListener) -> ModelOutline:
    from flyweight.weights.hub.find import HubSearch
    from flyweight.weights.hub.header import fetch_header

    search = HubSearch(None, offline, accept=find_family)
    with TemporaryDirectory(prefix="flyweight-plan-") as folder:
        path = fetch_header(name, search, Path(folder), tell)
        if path.is_dir():
            return _outline_config(read_json(path / "config.json"), str(name))
        return _outline_files(path, str(name))


def _outline_files(path: Path, name: str) -> ModelOutline:
    """From the headers of a model's files."""
    checkpoint, tokenizer = open_checkpoint(path), None
    try:
        family = find_family(checkpoint.config)
        spec = read_spec(checkpoint, family)
        plan = read_plan(checkpoint, family, spec)
        kinds = list_slot_kinds(checkpoint, plan)
        quality = read_quality(checkpoint)
        with suppress(CheckpointError):  # a plan needs none
            tokenizer = load_any_tokenizer(checkpoint.tokenizer_source)
    finally:
        checkpoint.close()
    basis = "the headers of its files"
    return ModelOutline(name, spec, plan, kinds, basis, quality, tokenizer=tokenizer)


def _outline_config(
    config: Mapping[str, Any], name: str, source: str = "config.json"
) -> ModelOutline:
    """From a config alone; the kinds of matrices are what it says of the files."""
    try:
        family = find_family(config)
        spec = family.read_spec(config)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from None
    plan = family.plan(spec, Files())
    dense, coded = _read_kinds(config)
    kinds = {
        slot.name: [(slot.shape, _fit_kind(slot, _choose(slot, dense, coded)))]
        for slot in plan.slots
    }
    basis = f"{source}; matrices assumed as {coded or dense}"
    return ModelOutline(name, spec, plan, kinds, basis)


def _choose(slot: SlotPlan, dense: str, coded: str) -> str:
    """Quantised files leave embedding, head and routers as they were."""
    whole = slot.kind == "embed" or slot.name.endswith(("head", "router"))
    return dense if whole or not coded else coded


def _read_kinds(config: Mapping[str, Any]) -> tuple[str, str]:
    """What matrices are kept as, and what quantised ones are packed as, "" where none is."""
    inner = config.get("text_config")
    sources = [config, inner] if isinstance(inner, Mapping) else [config]
    named = [one.get(key) for one in sources for key in ("dtype", "torch_dtype")]
    dense = next((DTYPES[name] for name in named if isinstance(name, str) and name in DTYPES), "")
    found = config.get("quantization_config")
    return dense or "bf16", _read_coded(found) if isinstance(found, Mapping) else ""


def _read_coded(found: Mapping[str, Any]) -> str:
    """The kind of the usual layout of a method: its bits, in groups of 128 unless it says."""
    method = str(found.get("quant_method", "")).lower()
    if "mxfp4" in method:
        return "mxfp4"
    if "fp8" in method:
        return "e4m3_rows"
    if found.get("load_in_4bit"):
        return "nf4_g64"
    bits = next((found[key] for key in ("bits", "w_bit", "num_bits") if key in found), None)
    if method == "compressed-tensors":
        bits = _find_bits(found)
    if found.get("load_in_8bit") or bits == 8:
        return "s8_rows" if method in ("bitsandbytes", "compressed-tensors") else "u8_g128"
    group = found.get("group_size", found.get("q_group_size", 128))
    bits = bits if bits in (2, 3, 4) else 4
    return f"u{bits}_g{group if group in (32, 64, 128) else 128}"


def _find_bits(found: Mapping[str, Any]) -> object:
    """Of the first group of compressed-tensors."""
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    return weights.get("num_bits") if isinstance(weights, Mapping) else None


def _fit_kind(slot: SlotPlan, kind: str) -> str:
    """The kind, or a nearby one whose blocks fit the rows; vectors are always float32."""
    if slot.kind == "vector":
        return "f32"
    for one in (kind, SMALLER.get(kind, "")):
        if one and slot.shape[-1] % count_block(one) == 0:
            return one
    return "bf16"


def _count_elements(slot: SlotPlan) -> int:
    count = 1
    for axis in slot.shape:
        count *= axis
    return count
