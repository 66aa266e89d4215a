"""EXAONE 3, 3.5 and 4 (LG AI Research, 2024 and 2025).

EXAONE 3 is a Llama with other names. EXAONE 4 has norms after each block and of single heads; its
32B a window on three of four layers, and no positions on the others.
"""

from dataclasses import replace

from flyweight.errors import CheckpointError
from flyweight.models.config import Config, read_integer
from flyweight.models.olmo import NAMES as POST_NORMS
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    read_layer_kinds,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, WeightPlan
from flyweight.validation.untrusted import shown

NAMES = TensorNames(
    embed="transformer.wte",
    norm="transformer.ln_f",
    layer="transformer.h.",
    attn_norm="ln_1",
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    out="attn.attention.out_proj",
    mlp_norm="ln_2",
    up=("mlp.c_fc_0", "mlp.c_fc_1"),
    down="mlp.c_proj",
)
RENAMED = {
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}


def read_exaone(config: Config) -> ModelSpec:
    """An `ExaoneForCausalLM` config.json."""
    named = {key: config[own] for key, own in RENAMED.items() if config.get(own) is not None}
    return make_gated_spec({"rms_norm_eps": 1e-5, **config, **named}, "exaone")


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)


def read_exaone4(config: Config) -> ModelSpec:
    """An `Exaone4ForCausalLM` config.json; where sliding_window is null, every layer sees and
    rotates everything.
    """
    config = {"sliding_window": 4096, "rms_norm_eps": 1e-5, **config}
    found = change_layers(
        make_gated_spec(config, "exaone4"), lambda _, x: replace(x, qk_norm="head")
    )
    if config["sliding_window"] is None:
        return found
    pattern = _read_pattern(config, len(found.layers))
    kinds = read_layer_kinds(found, config, lambda i: pattern[i])

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, rope=0 if kinds[i] == "sliding_attention" else None)

    return add_sliding_window(
        change_layers(found, change), {**config, "layer_types": kinds}, lambda i: True
    )


def _read_pattern(config: Config, layers: int) -> list[bool]:
    """Which layers have the window: every nth has none, or L (local) and G (global) in turn, where
    the last layer is global.
    """
    pattern = config.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        every = read_integer(config, "sliding_window_pattern", 4)
        return [(i + 1) % every != 0 for i in range(layers)]
    if not pattern or set(pattern) - {"L", "G"}:
        raise CheckpointError(
            f"config: sliding_window_pattern = {shown(pattern)}; a number, or letters L and G"
        )
    return [pattern[i % len(pattern)] == "L" and i < layers - 1 for i in range(layers)]


def plan_exaone4(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, POST_NORMS, files)
