"""StarCoder2 (Lozhkov et al., 2024): LayerNorms, biases everywhere, an MLP without a gate."""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_flag, read_real
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, NormSpec, WeightPlan

NAMES = TensorNames(up=("mlp.c_fc",), down="mlp.c_proj")


def read_spec(config: Config) -> ModelSpec:
    """A `Starcoder2ForCausalLM` config.json."""
    usual = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    found = make_gated_spec(fill_defaults(config, usual), "starcoder2")
    bias = read_flag(config, "use_bias", True)

    def change(_: int, x: LayerSpec) -> LayerSpec:
        return replace(x, gated=False, attn_bias=bias, out_bias=bias, mlp_bias=bias)

    norm = NormSpec(read_real(config, "norm_epsilon", 1e-5), "layer", bias=True)
    return add_sliding_window(
        replace(change_layers(found, change), norm=norm), config, lambda i: True
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)
