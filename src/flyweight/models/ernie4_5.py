"""ERNIE 4.5 (Baidu, 2025), the dense models: a Llama whose heads are rotated in adjacent pairs,
with a bias on every matrix or on none.
"""

from dataclasses import replace

from flyweight.models.config import Config, read_flag
from flyweight.models.plans import (
    TensorNames,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_interleaved_order,
)
from flyweight.spec import Files, ModelSpec, WeightPlan

USUAL = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}


def spec(config: Config) -> ModelSpec:
    """An `Ernie4_5ForCausalLM` config.json."""
    bias = read_flag(config, "use_bias")
    return change_layers(
        make_gated_spec({**USUAL, **config}, "ernie4_5"),
        lambda _, layer: replace(layer, attn_bias=bias, out_bias=bias, mlp_bias=bias),
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF keeps the interleaved order of q and k."""
    return make_decoder_plan(spec, TensorNames(), files, make_interleaved_order(spec))
