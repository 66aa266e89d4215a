"""StableLM 2 and 3B (Bellagente et al., 2024): LayerNorms, a quarter of each head turned, and in
some sizes attention and MLP side by side.
"""

from dataclasses import replace

from flyweight.models.config import Config, filled, flag, real, refuse
from flyweight.models.plans import Names, decoder_plan, each, gated_decoder
from flyweight.spec import Files, ModelSpec, NormSpec, WeightPlan

SIDE_BY_SIDE = Names(mlp_norm="")


def spec(config: Config) -> ModelSpec:
    """A `StableLmForCausalLM` config.json; norms of single heads (12B) are refused."""
    refuse(config, "qk_layernorm", False)
    found = gated_decoder(filled(config, {"partial_rotary_factor": 0.25}), "stablelm")
    bias = flag(config, "use_qkv_bias")
    return replace(
        each(found, lambda _, layer: replace(layer, attn_bias=bias)),
        norm=NormSpec(real(config, "layer_norm_eps", 1e-5), "layer", bias=True),
        parallel=flag(config, "use_parallel_residual"),
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return decoder_plan(spec, SIDE_BY_SIDE if spec.parallel else Names(), files)
