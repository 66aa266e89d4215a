"""GPT-2 (Radford et al., 2019): learned positions, LayerNorms, matrices published as [in, out],
except for quantised ones, which are [out, in] as everywhere.
"""

from dataclasses import replace

from flyweight.models.config import MOST_POSITIONS, Config, read_integer, read_real, refuse
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, LayerSpec, ModelSpec, NormSpec, SlotPlan, WeightPlan

NAMES = TensorNames(
    embed="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h.",
    attn_norm="ln_1",
    qkv=("attn.c_attn",),
    out="attn.c_proj",
    mlp_norm="ln_2",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
    base="transformer.",
)
MASKS = ("*h.*.attn.bias", "*h.*.attn.masked_bias")  # tables older files carry
TURNED = ("qkv", "out", "up", "down")


def read_spec(config: Config) -> ModelSpec:
    """A `GPT2LMHeadModel` config.json."""
    refuse(config, "scale_attn_weights", True)
    refuse(config, "scale_attn_by_inverse_layer_idx", False)
    hidden = read_integer(config, "n_embd")
    renamed = {
        "hidden_size": hidden,
        "num_attention_heads": read_integer(config, "n_head"),
        "num_hidden_layers": read_integer(config, "n_layer"),
        "intermediate_size": read_integer(config, "n_inner", 4 * hidden),
        "max_position_embeddings": read_integer(config, "n_positions", 1024, MOST_POSITIONS),
        "hidden_act": config.get("activation_function") or "gelu_new",
        "vocab_size": config.get("vocab_size"),
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }
    found = make_gated_spec(renamed, "gpt2", rotary=False)
    norm = NormSpec(read_real(config, "layer_norm_epsilon", 1e-5), "layer", bias=True)
    return replace(change_layers(found, make_plain), norm=norm, positions=found.context)


def make_plain(_: int, layer: LayerSpec) -> LayerSpec:
    """A layer without gate or rope, everything biased."""
    biases = {"attn_bias": True, "out_bias": True, "mlp_bias": True}
    return replace(layer, gated=False, rope=None, **biases)  # type: ignore[arg-type]


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """GGUF's converters turn the matrices, and so do quantisers."""
    found = make_decoder_plan(spec, NAMES, files)
    slots = tuple(
        slot if files.converted or slot.sources[0].tensor in files.joined else _transpose(slot)
        for slot in found.slots
    )
    return replace(found, slots=slots, ignored=found.ignored + MASKS)


def _transpose(slot: SlotPlan) -> SlotPlan:
    if slot.name.split(".")[-1] not in TURNED:
        return slot
    rows, columns = slot.shape
    source = replace(slot.sources[0], shape=(columns, rows), rows=columns, transposed=True)
    return replace(slot, sources=(source,))
