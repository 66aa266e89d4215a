"""Gemma 3 (2025): Gemma 2 with head norms in place of caps, and five layers with a window and a
rope base of their own to each that sees everything.  Of the models that see pictures, the text.
"""

from collections.abc import Mapping
from dataclasses import replace

from flyweight.models import gemma2
from flyweight.models.config import Config, fill_defaults, find_text_config, read_integer, read_real
from flyweight.models.plans import (
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    read_layer_kinds,
)
from flyweight.models.rope import read_rope_spec
from flyweight.spec import Files, LayerSpec, ModelSpec, WeightPlan

# Where the text model lies in the checkpoints that see images too, by who saved them
WRAPPED = ("language_model.model.", "model.language_model.")
SEEING = ("*vision_tower.*", "*multi_modal_projector.*", "language_model.lm_head.weight")
USUAL = {  # what the 4B's text_config leaves out
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}


def spec(config: Config) -> ModelSpec:
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
    found = gemma2.make_gemma_spec(flat, "gemma3_text")
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


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """The text model's tensors, wherever they are; those that see are not read."""
    found = gemma2.plan(spec, files)
    prefix = next((p for p in WRAPPED if any(n.startswith(p) for n in files.names)), "")
    if prefix:
        names = replace(
            gemma2.NAMES,
            embed=f"{prefix}embed_tokens",
            norm=f"{prefix}norm",
            head="lm_head",
            layer=f"{prefix}layers.",
        )
        found = make_decoder_plan(spec, names, files, plus=1.0)
    return replace(found, ignored=found.ignored + SEEING)
