"""EXAONE 3 and 3.5 (LG AI Research, 2024): a Llama under names of its own."""

from flyweight.models.config import Config
from flyweight.models.plans import TensorNames, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, ModelSpec, WeightPlan

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


def spec(config: Config) -> ModelSpec:
    """An `ExaoneForCausalLM` config.json."""
    named = {key: config[own] for key, own in RENAMED.items() if config.get(own) is not None}
    return make_gated_spec({"rms_norm_eps": 1e-5, **config, **named}, "exaone")


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return make_decoder_plan(spec, NAMES, files)
