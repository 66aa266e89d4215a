"""StableLM 2 and 3B (Bellagente et al., 2024): LayerNorms, a quarter of each head turned, and in
some sizes (12B) attention and MLP in parallel and a norm for each head of q and k.
"""

from dataclasses import replace

from flyweight.models.config import Config, fill_defaults, read_flag, read_real
from flyweight.models.plans import TensorNames, change_layers, make_decoder_plan, make_gated_spec
from flyweight.spec import Files, ModelSpec, NormSpec, SlotPlan, Source, WeightPlan

SIDE_BY_SIDE = TensorNames(mlp_norm="")


def read_spec(config: Config) -> ModelSpec:
    """A `StableLmForCausalLM` config.json."""
    found = make_gated_spec(fill_defaults(config, {"partial_rotary_factor": 0.25}), "stablelm")
    bias = read_flag(config, "use_qkv_bias")
    norm = "centred" if read_flag(config, "qk_layernorm") else ""
    return replace(
        change_layers(found, lambda _, layer: replace(layer, attn_bias=bias, qk_norm=norm)),
        norm=NormSpec(read_real(config, "layer_norm_eps", 1e-5), "layer", bias=True),
        parallel=read_flag(config, "use_parallel_residual"),
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """As published the norm of every head is a tensor; GGUF's converters stack them."""
    found = make_decoder_plan(spec, SIDE_BY_SIDE if spec.parallel else TensorNames(), files)
    return (
        found
        if files.converted
        else replace(found, slots=tuple(map(_split_head_norms, found.slots)))
    )


def _split_head_norms(slot: SlotPlan) -> SlotPlan:
    """A slot of head norms, each head's weights from a tensor of its own."""
    if not slot.name.endswith((".q_norm", ".k_norm")):
        return slot
    whole = slot.sources[0]
    stem, (heads, head) = whole.tensor.removesuffix("norm.weight"), whole.shape
    names = (f"{stem}layernorm.norms.{h}.weight" for h in range(heads))
    return replace(slot, sources=tuple(Source(name, (head,), head) for name in names))
