"""Gemma 1 (2024): Llama with norms of 1+w, a scaled embedding and GELU."""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, refuse
from flyweight.models.llama import add_biases
from flyweight.models.plans import TensorNames, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, ModelSpec, WeightPlan

TANH = "gelu_pytorch_tanh"


def spec(config: Config) -> ModelSpec:
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
