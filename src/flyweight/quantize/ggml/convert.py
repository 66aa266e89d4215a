"""A model's config and weight plan as GGUF says them: the inverse of `weights.gguf_config` and
`weights.gguf_names`.

Invariant: our own reader makes of the metadata the spec it was made from, or the model is refused
by name: what GGUF cannot say is never left out silently.  Key names: ggml's docs/gguf.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError, ConfigError
from flyweight.models.registry import find_family
from flyweight.models.rope import compute_inverse_frequencies
from flyweight.quantize.ggml.container import GgufTensor
from flyweight.quantize.ggml.recipes import RecipeModel, TypeRecipe, choose_kind
from flyweight.spec import Files, ModelSpec, NormSpec, RopeSpec, Source, WeightPlan
from flyweight.weights.gguf_config import FLAGS, REALS, WHOLES, make_hf_config
from flyweight.weights.gguf_names import ARCHITECTURES, GgufArchitecture, list_writable, spell
from flyweight.weights.ggufmodel import LONGROPE, add_rope_factors
from flyweight.weights.tensorinfo import Span
from flyweight.wire import F32

WHERE = "the converted model"
SIGMOID = 2


@dataclass(frozen=True, slots=True)
class GgufModel:
    """`plan` has the slots of the model, filled from GGUF's tensors under their names there;
    `constants` are tensors that follow from the config, float32.
    """

    architecture: str
    spec: ModelSpec
    metadata: Mapping[str, object]
    plan: WeightPlan
    constants: Mapping[str, F32]

    def list_tensors(self, recipe: TypeRecipe, weighed: bool) -> list[GgufTensor]:
        """Every tensor of the file with its type; `weighed` where an importance matrix is given."""
        model = describe_for_recipes(self.spec, weighed)
        found = [GgufTensor(name, "f32", x.shape) for name, x in self.constants.items()]
        for name, shape in list_shapes(self.plan).items():
            found.append(GgufTensor(name, choose_kind(recipe, name, shape, model) or "f32", shape))
        return found


def convert_model(config: Mapping[str, Any], spec: ModelSpec, source: WeightPlan) -> GgufModel:
    """GGUF's metadata and tensors of a model of this config.json.  Raises `ConfigError` for one
    that GGUF cannot hold, or whose architecture we do not write.
    """
    name = _find_architecture(config)
    arch = ARCHITECTURES[name]
    keys = _list_keys(name, arch, config, spec)
    metadata: dict[str, object] = {"general.architecture": name, "general.type": "model"}
    metadata |= {f"{name}.{key}": value for key, value in keys.items()}
    constants = _make_rope_tensors(spec)
    try:
        return _read_back(config, spec, source, metadata, constants)
    except CheckpointError as error:
        raise _refuse(config, str(error)) from None


def describe_for_recipes(spec: ModelSpec, weighed: bool) -> RecipeModel:
    """What recipes need to know about a model."""
    layer = spec.layers[0]
    experts = max((x.moe.route.experts for x in spec.layers if x.moe), default=0)
    queries = layer.heads // layer.kv.heads
    return RecipeModel(len(spec.layers), queries, experts, spec.tie, weighed)


def list_shapes(plan: WeightPlan) -> dict[str, tuple[int, ...]]:
    """Of every tensor in a plan with GGUF's names, as GGUF has them."""
    found: dict[str, tuple[int, ...]] = {}
    for slot in plan.slots:
        for source in slot.sources:
            row = source.tensor.endswith("ffn_gate_inp_shexp.weight") and len(source.shape) == 2
            found[source.tensor] = source.shape[1:] if row else source.shape
            if source.bias:
                found[source.bias] = source.bias_shape
    return found


def _find_architecture(config: Mapping[str, Any]) -> str:
    kind = str(config.get("model_type", ""))
    writable = list_writable()
    if kind not in writable:
        raise _refuse(config, f"writable: {', '.join(writable)}")
    return writable[kind]


def _refuse(config: Mapping[str, Any], why: str) -> ConfigError:
    return ConfigError(f"cannot hold a model of type {config.get('model_type')}: {why}", "gguf")


def _list_keys(
    name: str, arch: GgufArchitecture, config: Mapping[str, Any], spec: ModelSpec
) -> dict[str, object]:
    """Under the architecture's prefix; later ones replace earlier."""
    layer = spec.layers[0]
    rms = spec.norm.kind == "rms"
    keys: dict[str, object] = {
        "vocab_size": spec.vocab,
        "context_length": spec.context,
        "embedding_length": spec.hidden,
        "block_count": len(spec.layers),
        "feed_forward_length": max(x.inner for x in spec.layers),
        "attention.head_count": layer.heads,
        "attention.head_count_kv": layer.kv.heads,
        "attention.key_length": layer.head,
        "attention.value_length": layer.head,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": _round(spec.norm.eps),
    }
    keys |= _list_rope(spec) | _list_named(arch, config) | _list_experts(config, spec)
    keys |= _list_windows(name, spec) | _list_special(config, spec)
    return keys


def _list_named(arch: GgufArchitecture, config: Mapping[str, Any]) -> dict[str, object]:
    """What the reader takes over as it is."""
    kinds = ((REALS, _round), (WHOLES, int), (FLAGS, bool))
    found: dict[str, object] = {}
    for table, kind in kinds:
        for key, known in table.items():
            value = config.get(arch.renamed.get(known, known))
            if value is not None:
                found[key] = kind(value)
    return found


def _round(value: float) -> float:
    """As the file holds it."""
    return float(np.float32(value))


def _list_rope(spec: ModelSpec) -> dict[str, object]:
    if not spec.ropes:
        return {}
    rope = spec.ropes[0]
    scaling = dict(rope.scaling)
    keys: dict[str, object] = {
        "rope.freq_base": _round(rope.base),
        "rope.dimension_count": rope.dim,
    }
    if len(spec.ropes) > 1:
        keys["rope.freq_base_swa"] = _round(spec.ropes[1].base)
    if rope.kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": scaling["factor"]}
    if rope.kind in ("yarn", "longrope"):
        original = scaling["original_max_position_embeddings"]
        keys["rope.scaling.original_context_length"] = int(original)  # type: ignore[arg-type]
        keys["rope.scaling.attn_factor"] = _round(rope.factor)
    for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if ours in scaling:
            keys[f"rope.scaling.{theirs}"] = scaling[ours]
    return keys


def _list_experts(config: Mapping[str, Any], spec: ModelSpec) -> dict[str, object]:
    mixed = [x.moe for x in spec.layers if x.moe]
    if not mixed:
        return {}
    route = mixed[0].route
    keys: dict[str, object] = {
        "expert_count": route.experts,
        "expert_used_count": route.top,
        "expert_feed_forward_length": mixed[0].inner,
    }
    if route.scoring == "sigmoid" and "n_group" in config:
        keys["expert_gating_func"] = SIGMOID
    if "n_group" in config:
        keys |= {"expert_group_count": route.groups, "expert_group_used_count": route.kept}
    if config.get("first_k_dense_replace") is not None:
        keys["leading_dense_block_count"] = config["first_k_dense_replace"]
    if mixed[0].shared and config.get("model_type") == "qwen2_moe":
        keys["expert_shared_feed_forward_length"] = mixed[0].shared
    return keys


def _list_windows(name: str, spec: ModelSpec) -> dict[str, object]:
    windows = [layer.kv.window for layer in spec.layers]
    if not any(windows):
        return {}
    keys: dict[str, object] = {"attention.sliding_window": max(windows)}
    if not all(windows):
        keys["attention.sliding_window_pattern"] = np.array([w > 0 for w in windows])
    if name == "cohere2":  # every fourth layer sees everything, which is known
        keys.pop("attention.sliding_window_pattern", None)
    return keys


def _list_special(config: Mapping[str, Any], spec: ModelSpec) -> dict[str, object]:
    """What single families say in words of their own."""
    keys: dict[str, object] = {}
    kind = config.get("model_type")
    if kind in ("gpt_neox", "stablelm"):
        keys["use_parallel_residual"] = spec.parallel
    if kind == "minicpm":
        keys["embedding_scale"] = _round(config["scale_emb"])
        keys["residual_scale"] = _round(config["scale_depth"] / len(spec.layers) ** 0.5)
        keys["logit_scale"] = _round(spec.hidden / config["dim_model_base"])
    latent = spec.layers[0].latent
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if latent is not None and rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = _round(0.1 * rope["mscale_all_dim"])
    if latent is not None:
        keys |= {
            "attention.head_count_kv": 1,
            "attention.key_length": latent.rank + latent.rope,
            "attention.value_length": latent.rank,
            "attention.key_length_mla": latent.rope + latent.plain,
            "attention.value_length_mla": latent.value,
            "rope.dimension_count": latent.rope,
        }
    return keys


def _make_rope_tensors(spec: ModelSpec) -> dict[str, F32]:
    """One divisor for each frequency, where GGUF has no words for the scaling."""
    if not spec.ropes:
        return {}
    rope = spec.ropes[0]
    scaling = dict(rope.scaling)
    if rope.kind == "llama3":
        plain = compute_inverse_frequencies(RopeSpec(rope.dim, rope.base), spec.context)
        turned = compute_inverse_frequencies(rope, spec.context)
        return {"rope_freqs.weight": (plain / turned).astype(np.float32)}
    if rope.kind == "factors":
        return {"rope_freqs.weight": np.array(scaling["factors"], np.float32)}
    if rope.kind == "longrope":
        return {name: np.array(scaling[key], np.float32) for name, key in LONGROPE.items()}
    return {}


def _read_back(
    config: Mapping[str, Any],
    spec: ModelSpec,
    source: WeightPlan,
    metadata: dict[str, object],
    constants: dict[str, F32],
) -> GgufModel:
    """The model as our reader sees it, which must be the one there was."""
    name = str(metadata["general.architecture"])
    arch = ARCHITECTURES[name]
    family = find_family(config)
    plan = _rename(arch, family.plan(spec, _make_files(spec)))
    shapes = list_shapes(plan)
    if not spec.tie and "output.weight" not in shapes:
        raise CheckpointError("its head has no name there")
    spans = {tensor: Span(shape, "f32", 0, 0) for tensor, shape in shapes.items()}
    found = make_hf_config(metadata, spans, WHERE)
    add_rope_factors(found, constants, WHERE)
    reader = find_family(found)
    read = reader.read_spec(found)
    _compare_specs(spec, read)
    read_plan = _rename(arch, reader.plan(read, _make_files(read)))
    _compare_plans(source, plan, read_plan)
    _check_names(shapes)
    return GgufModel(name, spec, metadata, read_plan, constants)


def _make_files(spec: ModelSpec) -> Files:
    """What plans need of the file that will be written: latent attention has its matrix in two."""
    parted = (f"model.layers.{i}.self_attn.k_b_proj.weight" for i in range(len(spec.layers)))
    return Files(True, frozenset(parted) if spec.layers[0].latent else frozenset())


def _rename(arch: GgufArchitecture, plan: WeightPlan) -> WeightPlan:
    def rename(source: Source) -> Source:
        bias = spell(arch, source.bias) if source.bias else ""
        return replace(source, tensor=spell(arch, source.tensor), bias=bias)

    slots = [replace(slot, sources=tuple(map(rename, slot.sources))) for slot in plan.slots]
    return WeightPlan(tuple(slots), plan.ignored)


def _compare_specs(spec: ModelSpec, read: ModelSpec) -> None:
    for one in fields(ModelSpec):
        ours, theirs = getattr(spec, one.name), getattr(read, one.name)
        if one.name == "family":
            continue
        if one.name == "ropes":
            same = len(ours) == len(theirs) and all(
                _turn_alike(a, b, spec.context) for a, b in zip(ours, theirs, strict=True)
            )
        elif one.name == "layers":
            same = len(ours) == len(theirs)
            for a, b in zip(ours, theirs, strict=False):
                _compare_layers(a, b)
        else:
            same = _is_same(ours, theirs)
        if not same:
            raise CheckpointError(f"{one.name} = {ours} would be read as {theirs}")


def _compare_layers(ours: Any, theirs: Any) -> None:
    for one in fields(ours):
        a, b = getattr(ours, one.name), getattr(theirs, one.name)
        if not _is_same(a, b):
            raise CheckpointError(f"{one.name} = {a} of a layer would be read as {b}")


def _is_same(ours: Any, theirs: Any) -> bool:
    """Equal except for numbers that the file rounds to float32."""
    if isinstance(ours, float):
        return bool(np.isclose(ours, theirs, rtol=1e-6, atol=0))
    if isinstance(ours, NormSpec):
        return _is_same(ours.eps, theirs.eps) and replace(ours, eps=theirs.eps) == theirs
    return bool(ours == theirs)


def _turn_alike(a: RopeSpec, b: RopeSpec, context: int) -> bool:
    """In texts of any length: some scalings depend on it."""
    for length in (1, context, 2 * context):
        first, second = (compute_inverse_frequencies(rope, length) for rope in (a, b))
        if first.shape != second.shape or not np.allclose(first, second, rtol=1e-6, atol=0):
            return False
    return bool(np.isclose(a.factor, b.factor, rtol=1e-6))


def _compare_plans(source: WeightPlan, plan: WeightPlan, read: WeightPlan) -> None:
    """The same slots, filled from the same tensors, for every reader of the file."""
    if plan.slots != read.slots:
        raise CheckpointError("its tensors would be read in another order")
    wanted, found = ({slot.name: slot.shape for slot in p.slots} for p in (source, plan))
    if wanted != found:
        odd = sorted(wanted.items() ^ found.items())[0]
        raise CheckpointError(f"{odd[0]} {list(odd[1])} is not part of GGUF")


def _check_names(shapes: Iterable[str]) -> None:
    parts = ("blk.", "token_embd.", "output.", "output_norm.", "position_embd.")
    for name in shapes:
        if not name.startswith(parts):
            raise CheckpointError(f"tensor {name} has no name there")
