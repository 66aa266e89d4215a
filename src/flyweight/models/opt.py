"""OPT (Zhang et al., 2022): learned positions, LayerNorms, relu."""

from dataclasses import replace

from flyweight.models.config import Config, flag, integer, refuse
from flyweight.models.gpt2 import plain
from flyweight.models.plans import Names, decoder_plan, each, gated_decoder
from flyweight.spec import Files, ModelSpec, NormSpec, SlotPlan, WeightPlan

NAMES = Names(
    embed="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.",
    attn_norm="self_attn_layer_norm",
    out="self_attn.out_proj",
    mlp_norm="final_layer_norm",
    up=("fc1",),
    down="fc2",
    base="model.",
)
SKIPPED = 2  # rows of the position table that no token uses


def spec(config: Config) -> ModelSpec:
    """An `OPTForCausalLM` config.json; the 350M's norms after the blocks are refused."""
    refuse(config, "do_layer_norm_before", True)
    refuse(config, "word_embed_proj_dim", integer(config, "hidden_size"))
    refuse(config, "enable_bias", True)
    refuse(config, "_remove_final_layer_norm", False)
    refuse(config, "layer_norm_elementwise_affine", True)
    renamed = {
        **config,
        "intermediate_size": integer(config, "ffn_dim"),
        "hidden_act": config.get("activation_function") or "relu",
        "tie_word_embeddings": flag(config, "tie_word_embeddings", True),
    }
    found = gated_decoder(renamed, "opt")
    norm = NormSpec(1e-5, "layer", bias=True)
    return replace(each(found, plain), norm=norm, positions=found.context, ropes=())


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    found = decoder_plan(spec, NAMES, files)
    return replace(found, slots=tuple(map(_skipping, found.slots)))


def _skipping(slot: SlotPlan) -> SlotPlan:
    if slot.name != "positions":
        return slot
    rows, columns = slot.shape
    source = replace(slot.sources[0], shape=(rows + SKIPPED, columns), start=SKIPPED)
    return replace(slot, sources=(source,))
