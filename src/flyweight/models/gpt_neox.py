"""GPT-NeoX and Pythia (Black et al., 2022; Biderman et al., 2023): attention and MLP side by side,
LayerNorms, a quarter of each head turned.
"""

from dataclasses import replace

import numpy as np

from flyweight.models.config import Config, fill_defaults, read_flag, read_real
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, LayerSpec, ModelSpec, NormSpec, WeightPlan

NAMES = TensorNames(
    embed="gpt_neox.embed_in",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    layer="gpt_neox.layers.",
    qkv=("attention.query_key_value",),
    out="attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)
MASKS = ("*.attention.bias", "*.attention.masked_bias")  # tables older files carry


def read_spec(config: Config) -> ModelSpec:
    """A `GPTNeoXForCausalLM` config.json."""
    turned = {
        "partial_rotary_factor": read_real(config, "rotary_pct", 0.25),
        "rope_theta": read_real(config, "rotary_emb_base", 10000.0),
    }
    found = make_gated_spec(fill_defaults(config, {"hidden_act": "gelu", **turned}), "gpt_neox")
    bias = read_flag(config, "attention_bias", True)

    def change(_: int, x: LayerSpec) -> LayerSpec:
        return replace(x, gated=False, attn_bias=bias, out_bias=bias, mlp_bias=True)

    return replace(
        change_layers(found, change),
        norm=NormSpec(read_real(config, "layer_norm_eps", 1e-5), "layer", bias=True),
        parallel=read_flag(config, "use_parallel_residual", True),
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """As published every head has its q, k and v together; GGUF's converters part them."""
    found = make_decoder_plan(spec, NAMES, files)
    if not files.converted:
        layer = spec.layers[0]
        rows = np.arange(3 * layer.heads * layer.head).reshape(layer.heads, 3, layer.head)
        order = tuple(rows.swapaxes(0, 1).reshape(-1).tolist())
        slots = [
            replace(s, sources=(replace(s.sources[0], order=order),)) if _is_qkv(s.name) else s
            for s in found.slots
        ]
        found = replace(found, slots=tuple(slots))
    return replace(found, ignored=found.ignored + MASKS)


def _is_qkv(name: str) -> bool:
    return name.endswith(".qkv")
