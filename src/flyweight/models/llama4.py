"""Llama 4 Scout and Maverick (2025), the text part: attention within chunks on the layers with
positions, none on the others (iRoPE), and experts whose inputs are multiplied by their scores.
"""

from dataclasses import dataclass, replace

from flyweight.errors import CheckpointError
from flyweight.models.config import (
    MOST_POSITIONS,
    Config,
    fill_defaults,
    find_text_config,
    read_flag,
    read_integer,
    read_layer_switches,
    read_real,
)
from flyweight.models.mixture import STACKED, Experts, MoeNames
from flyweight.models.plans import (
    TensorNames,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_half_split_order,
)
from flyweight.spec import (
    Files,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    RouteSpec,
    Source,
    TemperSpec,
    WeightPlan,
)
from flyweight.validation.untrusted import shown

USUAL = {  # what transformers fills in
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
NAMES = TensorNames(
    up=("feed_forward.gate_proj", "feed_forward.up_proj"), down="feed_forward.down_proj"
)
MOE = MoeNames(
    router="feed_forward.router",
    experts="feed_forward.experts",
    shared="feed_forward.shared_expert",
)
WRAPPED = "language_model."  # before every name of the text part in checkpoints with images
SEEING = ("vision_model.*", "multi_modal_projector.*")


def read_spec(config: Config) -> ModelSpec:
    """A `Llama4ForCausalLM` config.json, or the text part of `Llama4ForConditionalGeneration`'s."""
    config = fill_defaults(find_text_config(config), USUAL)
    found = make_gated_spec(
        {**config, "intermediate_size": config["intermediate_size_mlp"]}, "llama4"
    )
    count = len(found.layers)
    every = read_integer(config, "no_rope_layer_interval", 4)
    turned = read_layer_switches(
        config, "no_rope_layers", [(i + 1) % every != 0 for i in range(count)]
    )
    chunked = _find_chunked_layers(config, turned)
    chunk = read_integer(config, "attention_chunk_size", 8192, MOST_POSITIONS)
    norm, bias = _choose_norm(config, found), read_flag(config, "attention_bias")
    temper, moe, mixed = _read_temper(config), _read_moe(config), _find_moe_layers(config, count)

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        kv = replace(layer.kv, chunk=chunk if chunked[i] else 0)
        layer = replace(layer, kv=kv, attn_bias=bias, out_bias=bias, moe=moe if mixed[i] else None)
        if turned[i]:
            return replace(layer, qk_norm=norm)
        return replace(layer, rope=None, temper=temper)

    return change_layers(found, change)


def _find_chunked_layers(config: Config, turned: list[bool]) -> list[bool]:
    """Layers that see their own chunk only: those with positions, unless layer_types says it."""
    kinds = config.get("layer_types")
    if config.get("attention_chunk_size", 8192) is None:
        return [False] * len(turned)
    if kinds is None:
        return turned
    allowed = ("chunked_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != len(turned) or set(kinds) - set(allowed):
        raise CheckpointError(
            f"config: layer_types = {shown(kinds)}; a list of {len(turned)} is needed, each "
            f"{' or '.join(allowed)}"
        )
    return [kind == allowed[0] for kind in kinds]


def _choose_norm(config: Config, found: ModelSpec) -> str:
    """Heads are normed after their rotation, which is the same as before it while the rotation
    keeps lengths.
    """
    if not read_flag(config, "use_qk_norm", True):
        return ""
    if found.ropes[0].factor != 1:
        raise CheckpointError(
            f"config: use_qk_norm with a rope of attention factor {found.ropes[0].factor:g} is not "
            "supported; allowed: 1"
        )
    return "unit"


def _read_temper(config: Config) -> TemperSpec | None:
    on = config.get("attn_temperature_tuning") == 4  # what transformers 4 wrote for true
    if not on and not read_flag(config, "attn_temperature_tuning", True):
        return None
    every = read_integer(config, "floor_scale", 8192, MOST_POSITIONS)
    return TemperSpec(every, read_real(config, "attn_scale", 0.1))


def _read_moe(config: Config) -> MoeSpec:
    count, top = (
        read_integer(config, "num_local_experts", 16),
        read_integer(config, "num_experts_per_tok", 1),
    )
    if top > count:
        raise CheckpointError(
            f"config: num_experts_per_tok = {top} of {count} experts; nearest valid: {count}"
        )
    inner = read_integer(config, "intermediate_size")
    return MoeSpec(RouteSpec(count, top, "sigmoid"), inner, inner, before=True)


def _find_moe_layers(config: Config, count: int) -> list[bool]:
    """Layers with experts."""
    step, named = read_integer(config, "interleave_moe_layer_step", 1), config.get("moe_layers")
    if named is None:
        return [(i + 1) % step == 0 for i in range(count)]
    if not isinstance(named, list) or not all(isinstance(i, int) for i in named):
        raise CheckpointError(f"config: moe_layers = {shown(named)}; a list of layers is needed")
    return [i in named for i in range(count)]


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """The text model's tensors, under any prefix; heads' rows are as published interleaved."""
    names, head = NAMES, spec.layers[0].head
    if any(name.startswith(WRAPPED) for name in files.names):
        top = {k: WRAPPED + getattr(names, k) for k in ("embed", "norm", "head", "layer")}
        names = replace(names, **top)
    apart = any(f".{MOE.experts}.0." in name for name in files.names)  # as compressors leave them
    blocks = Experts if files.converted or apart else Llama4Experts
    moe = STACKED if files.converted else MOE
    found = make_decoder_plan(
        spec, names, files, turn=make_half_split_order(head), blocks=blocks(spec.hidden, moe, files)
    )
    return replace(found, ignored=found.ignored + SEEING)


@dataclass(frozen=True, slots=True)
class Llama4Experts(Experts):
    """Experts in tensors of all of them, [E, in, out], gate before up."""

    def _place_expert(
        self, src: str, e: int, modules: tuple[str, ...], shape: tuple[int, int], layer: LayerSpec
    ) -> tuple[Source, ...]:
        assert layer.moe is not None
        count, columns = layer.moe.route.experts, shape[1]
        name = "gate_up_proj" if len(modules) == 2 else "down_proj"
        size = count, columns, shape[0] * len(modules)
        tensor = f"{src}{self.names.experts}.{name}"
        return (Source(tensor, size, columns, e * columns, transposed=True),)
