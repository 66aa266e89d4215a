"""Gemma 1, 2 and 3 (Google, 2024 and 2025): Llama with norms of 1+w, a scaled embedding and GELU.

Gemma 2 adds norms on both sides of each block, soft-capped scores and logits, and a window on
every other layer. Gemma 3 has head norms in place of caps, and five layers with a window and a
rope base of their own to each that sees everything. Of models that see images, the text part.
"""

from collections.abc import Mapping
from dataclasses import replace

from flyweight.models.config import (
    Config,
    fill_defaults,
    find_text_config,
    read_integer,
    read_real,
    refuse,
)
from flyweight.models.llama import add_biases
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    read_layer_kinds,
)
from flyweight.models.rope import read_rope_spec
from flyweight.spec import Files, LayerSpec, ModelSpec, WeightPlan

TANH = "gelu_pytorch_tanh"
POST_NORMS = TensorNames(
    attn_post="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post="post_feedforward_layernorm",
)
# Prefix of the text model in checkpoints with a vision model, by who saved them
WRAPPED = ("language_model.model.", "model.language_model.")
SEEING = ("*vision_tower.*", "*multi_modal_projector.*", "language_model.lm_head.weight")
USUAL = {  # what the 4B's text_config leaves out
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}


def read_gemma(config: Config) -> ModelSpec:
    """A `GemmaForCausalLM` config.json.  The first ones say "gelu" and mean its tanh form."""
    usual = {"head_dim": 256, "hidden_act": TANH, "tie_word_embeddings": True}
    whole = fill_defaults(config, usual)
    act = whole.get("hidden_activation") or whole["hidden_act"]
    whole["hidden_act"] = TANH if act == "gelu" else act
    refuse(config, "use_bidirectional_attention", False)
    found = add_biases(
        make_gated_spec(whole, "gemma"), {"attention_bias": config.get("attention_bias")}
    )
    return replace(found, embed_scale=found.hidden**0.5)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF's converters add the 1 to the norms' weights."""
    return make_decoder_plan(spec, TensorNames(), files, plus=0.0 if files.converted else 1.0)


def read_gemma2(config: Config) -> ModelSpec:
    """A `Gemma2ForCausalLM` config.json."""
    found = make_gemma_spec(config, "gemma2")
    cap = _read_cap(config, "attn_logit_softcapping", 50.0)
    found = change_layers(found, lambda _, layer: replace(layer, softcap=cap))
    found = replace(found, logit_softcap=_read_cap(config, "final_logit_softcapping", 30.0))
    return add_sliding_window(found, {"sliding_window": 4096, **config}, lambda i: i % 2 == 0)


def make_gemma_spec(config: Config, family: str) -> ModelSpec:
    """What Gemma 2 and 3 share."""
    usual = {"head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    whole = fill_defaults(config, usual)
    whole["hidden_act"] = whole["hidden_activation"]
    found = make_gated_spec(whole, family)
    scale = read_real(config, "query_pre_attn_scalar", 256.0) ** -0.5
    found = change_layers(found, lambda _, layer: replace(layer, scale=scale))
    return replace(found, embed_scale=found.hidden**0.5)


def _read_cap(config: Config, key: str, usual: float) -> float:
    """A cap; null says there is none."""
    return 0.0 if key in config and config[key] is None else read_real(config, key, usual)


def plan_gemma2(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF's converters add the 1 to the norms' weights."""
    return make_decoder_plan(spec, POST_NORMS, files, plus=0.0 if files.converted else 1.0)


def read_gemma3(config: Config) -> ModelSpec:
    """A `Gemma3ForCausalLM` (text) config.json, as transformers 4 and 5 write it, or that of a
    model with images, whose text part is read.
    """
    return _make_text_spec(find_text_config(config))


def _make_text_spec(config: Config) -> ModelSpec:
    window = config.get("sliding_window", 4096)  # null is none
    config = {**fill_defaults(config, USUAL), "sliding_window": window}
    nested = config.get("rope_parameters")
    if isinstance(nested, Mapping) and "full_attention" in nested:
        everywhere, near = config, "sliding_attention"
        section = "full_attention"
    else:
        everywhere = {**config, "rope_theta": read_real(config, "rope_theta", 1e6)}
        section = near = ""
    flat = {k: v for k, v in config.items() if k not in ("rope_parameters", "rope_scaling")}
    found = make_gemma_spec(flat, "gemma3_text")
    head = found.layers[0].head
    local = {**flat, "rope_theta": read_real(config, "rope_local_base_freq", 10000.0)}
    ropes = (
        read_rope_spec(everywhere, head, section),
        read_rope_spec(config if near else local, head, near),
    )
    every = read_integer(config, "sliding_window_pattern", 6)
    kinds = read_layer_kinds(found, config, lambda i: (i + 1) % every != 0)
    named = {**config, "layer_types": kinds}

    def change(i: int, layer: LayerSpec) -> LayerSpec:
        return replace(layer, qk_norm="head", rope=int(kinds[i] == "sliding_attention"))

    return replace(
        change_layers(add_sliding_window(found, named, lambda i: True), change), ropes=ropes
    )


def plan_gemma3(spec: ModelSpec, files: Files) -> WeightPlan:
    """The text model's tensors, under any prefix; those of the vision model are not read."""
    found = plan_gemma2(spec, files)
    prefix = next((p for p in WRAPPED if any(n.startswith(p) for n in files.names)), "")
    if prefix:
        names = replace(
            POST_NORMS,
            embed=f"{prefix}embed_tokens",
            norm=f"{prefix}norm",
            head="lm_head",
            layer=f"{prefix}layers.",
        )
        found = make_decoder_plan(spec, names, files, plus=1.0)
    return replace(found, ignored=found.ignored + SEEING)
