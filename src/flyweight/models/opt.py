"""OPT (Zhang et al., 2022): learned positions, LayerNorms, relu.  The 350M norms after each block
and embeds tokens in fewer elements than its layers have.
"""

import re
from dataclasses import replace

from flyweight.models.config import Config, read_flag, read_integer, refuse
from flyweight.models.gpt2 import make_plain
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, ModelSpec, NormSpec, SlotPlan, WeightPlan

NAMES = TensorNames(
    embed="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.",
    attn_norm="self_attn_layer_norm",
    out="self_attn.out_proj",
    mlp_norm="final_layer_norm",
    up=("fc1",),
    down="fc2",
    widen="model.decoder.project_in",
    narrow="model.decoder.project_out",
    base="model.",
)
NORM = re.compile(r"layers\.(\d+)\.(attn|mlp)_norm(|_bias)")
VERSION = "*decoder.version"  # a number that older files carry
SKIPPED = 2  # rows of the position table that no token uses


def read_spec(config: Config) -> ModelSpec:
    """An `OPTForCausalLM` config.json."""
    refuse(config, "enable_bias", True)
    refuse(config, "_remove_final_layer_norm", False)
    refuse(config, "layer_norm_elementwise_affine", True)
    renamed = {
        **config,
        "intermediate_size": read_integer(config, "ffn_dim"),
        "hidden_act": config.get("activation_function") or "relu",
        "tie_word_embeddings": read_flag(config, "tie_word_embeddings", True),
    }
    found = make_gated_spec(renamed, "opt", rotary=False)
    width = read_integer(config, "word_embed_proj_dim", found.hidden)
    return replace(
        change_layers(found, make_plain),
        norm=NormSpec(
            1e-5, "layer", bias=True, post=not read_flag(config, "do_layer_norm_before", True)
        ),
        positions=found.context,
        narrow=0 if width == found.hidden else width,
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    names = replace(NAMES, norm="") if spec.norm.post else NAMES
    found = make_decoder_plan(spec, names, files)
    slots = tuple(map(_skip_rows, found.slots))
    if spec.norm.post:
        slots = tuple(_move_norms(slot, len(spec.layers)) for slot in slots)
    return replace(found, slots=slots, ignored=(*found.ignored, VERSION))


def _move_norms(slot: SlotPlan, layers: int) -> SlotPlan:
    """Norms after blocks, in the slots of the norms before the next ones."""
    found = NORM.fullmatch(slot.name)
    if found is None:
        return slot
    i, kind, bias = int(found[1]), found[2], found[3]
    if kind == "attn":
        return replace(slot, name=f"layers.{i}.mlp_norm{bias}")
    last = i == layers - 1
    return replace(slot, name=f"norm{bias}" if last else f"layers.{i + 1}.attn_norm{bias}")


def _skip_rows(slot: SlotPlan) -> SlotPlan:
    if slot.name != "positions":
        return slot
    rows, columns = slot.shape
    source = replace(slot.sources[0], shape=(rows + SKIPPED, columns), start=SKIPPED)
    return replace(slot, sources=(source,))
