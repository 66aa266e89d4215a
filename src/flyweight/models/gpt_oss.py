"""gpt-oss (OpenAI, 2025): sinks in every head's softmax, a window on every other layer, biased
experts with a clamped activation, published as MXFP4 or as [in, out] matrices.
"""

from dataclasses import dataclass, replace

from flyweight.models.config import Config, fill_defaults, read_flag, read_integer, refuse
from flyweight.models.mixture import STACKED, Experts, MoeNames
from flyweight.models.plans import (
    TensorNames,
    add_sliding_window,
    change_layers,
    make_decoder_plan,
    make_gated_spec,
    make_half_split_order,
)
from flyweight.spec import Files, LayerSpec, ModelSpec, MoeSpec, RouteSpec, Source, WeightPlan

ROUTER = MoeNames(router="mlp.router")
BLOCKS = "_blocks"  # ends the names of MXFP4 tensors; their rows are the matrix's rows


def read_spec(config: Config) -> ModelSpec:
    """A `GptOssForCausalLM` config.json."""
    refuse(config, "swiglu_limit", 7.0)
    refuse(config, "swiglu_alpha", 1.702)
    whole = fill_defaults(config, {"head_dim": 64})
    found = make_gated_spec(whole, "gpt_oss")
    count, top = (
        read_integer(config, "num_local_experts", 128),
        read_integer(config, "num_experts_per_tok", 4),
    )
    moe = MoeSpec(RouteSpec(count, min(top, count), "chosen"), found.layers[0].inner, bias=True)
    bias = read_flag(config, "attention_bias", True)

    def change(_: int, layer: LayerSpec) -> LayerSpec:
        layer = replace(layer, act="swiglu_clamped", moe=moe, sinks=True)
        return replace(layer, attn_bias=bias, out_bias=bias)

    return add_sliding_window(
        change_layers(found, change), {"sliding_window": 128, **config}, lambda i: i % 2 == 0
    )


def plan(spec: ModelSpec, files: Files) -> WeightPlan:
    """As published, gate and up of all experts are one tensor, their elements taking turns."""
    names = STACKED if files.converted else ROUTER
    blocks = Experts if files.converted else GptOssExperts
    return make_decoder_plan(spec, TensorNames(), files, blocks=blocks(spec.hidden, names, files))


@dataclass(frozen=True, slots=True)
class GptOssExperts(Experts):
    """Experts in tensors of all of them, [E, in, out] or, in MXFP4, [E, out, in]."""

    def _place_expert(
        self, src: str, e: int, modules: tuple[str, ...], shape: tuple[int, int], layer: LayerSpec
    ) -> tuple[Source, ...]:
        assert layer.moe is not None
        count, columns = layer.moe.route.experts, shape[1]
        both = len(modules) == 2
        rows = shape[0] * len(modules)
        order = make_half_split_order(rows) if both else ()
        name = f"{src}{self.names.experts}.{'gate_up_proj' if both else 'down_proj'}"
        if name + BLOCKS in self.files.names:
            tensor, size, start, turned = name + BLOCKS, (count, rows, columns), e * rows, False
        else:
            tensor, size, start, turned = name, (count, columns, rows), e * columns, True
        taken = columns if turned else rows
        return (Source(tensor, size, taken, start, order, turned, f"{name}_bias"),)
