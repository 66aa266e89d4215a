"""Gemma 2 (2024): norms of 1+w on both sides of each block, a scaled embedding, soft-capped scores
and logits, and a window on every other layer.
"""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_real
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
)
from flyweight.spec import Files, ModelSpec, WeightPlan

NAMES = TensorNames(
    attn_post="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post="post_feedforward_layernorm",
)


def spec(config: Config) -> ModelSpec:
    """A `Gemma2ForCausalLM` config.json."""
    found = make_gemma_spec(config, "gemma2")
    cap = _cap(config, "attn_logit_softcapping", 50.0)
    found = change_layers(found, lambda _, layer: replace(layer, softcap=cap))
    found = replace(found, logit_softcap=_cap(config, "final_logit_softcapping", 30.0))
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


def _cap(config: Config, key: str, usual: float) -> float:
    """A cap; null says there is none."""
    return 0.0 if key in config and config[key] is None else read_real(config, key, usual)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF's converters add the 1 to the norms' weights."""
    return make_decoder_plan(spec, NAMES, files, plus=0.0 if files.converted else 1.0)
