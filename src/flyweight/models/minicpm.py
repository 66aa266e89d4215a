"""MiniCPM 1, 2 and 4 (Hu et al., 2024): a Llama with multipliers on the embedding, the residual and
the logits.
"""

from dataclasses import replace

from flyweight.models import llama
from flyweight.models.config import Config, fill_defaults, read_integer, read_real, refuse
from flyweight.models.plans import make_gated_spec
from flyweight.spec import ModelSpec

plan = llama.plan


def spec(config: Config) -> ModelSpec:
    """A `MiniCPMForCausalLM` config.json, or the multipliers of a GGUF file, which are worked
    out; the mixtures of experts and sparse attention are refused.
    """
    refuse(config, "num_experts", 0)
    refuse(config, "sparse_config")
    found = llama.add_biases(
        make_gated_spec(
            fill_defaults(config, {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}), "minicpm"
        ),
        config,
    )
    depth = read_real(config, "scale_depth", 1.0) / len(found.layers) ** 0.5
    width = found.hidden / read_integer(config, "dim_model_base", 1)
    return replace(
        found,
        embed_scale=read_real(config, "embedding_multiplier", read_real(config, "scale_emb", 1.0)),
        residual_scale=read_real(config, "residual_multiplier", depth),
        logit_scale=1 / read_real(config, "logits_scaling", width),
    )
