"""StarCoder2 (Lozhkov et al., 2024): LayerNorms, biases everywhere, an MLP without a gate."""

from dataclasses import replace

from flyweight.models.config import Config, filled, flag, real
from flyweight.models.plans import TensorNames, decoder_plan, each, gated_decoder, sliding
from flyweight.spec import Files, LayerSpec, ModelSpec, NormSpec, WeightPlan

NAMES = TensorNames(up=("mlp.c_fc",), down="mlp.c_proj")


def spec(config: Config) -> ModelSpec:
    """A `Starcoder2ForCausalLM` config.json."""
    usual = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    found = gated_decoder(filled(config, usual), "starcoder2")
    bias = flag(config, "use_bias", True)

    def change(_: int, x: LayerSpec) -> LayerSpec:
        return replace(x, gated=False, attn_bias=bias, out_bias=bias, mlp_bias=bias)

    norm = NormSpec(real(config, "norm_epsilon", 1e-5), "layer", bias=True)
    return sliding(replace(each(found, change), norm=norm), config, lambda i: True)


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    return decoder_plan(spec, NAMES, files)
