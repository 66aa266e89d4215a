"""What most decoders share, as data: reading a config.json into a `ModelSpec`, and the weight plan
of a gated decoder.

Invariant: a plan names every tensor the model reads and the shape each slot must have; nothing is
read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyweight.errors import CheckpointError
from flyweight.models.rope import real, rope_spec
from flyweight.spec import KVGroup, LayerSpec, ModelSpec, SlotPlan, WeightPlan
from flyweight.untrusted import shown

ACTS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
LIMIT = 1 << 20  # no dimension of a real model is larger; a lying config must not size memory
MOST_POSITIONS = 1 << 24  # published contexts pass 2^20
MAX_LAYERS = 1024  # a plan has slots for each


@dataclass(frozen=True, slots=True)
class Traits:
    """What sets a family apart from a plain Llama; the names are `LayerSpec`'s."""

    qk_norm: bool = False
    attn_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False


def integer(
    config: Mapping[str, Any], key: str, default: int | None = None, most: int = LIMIT
) -> int:
    """A positive whole number of the config, or `CheckpointError` naming the key and the value."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        found = "is missing" if value is None else f"= {shown(value)}"
        raise CheckpointError(f"config: {key} {found}; it must be a whole number from 1 to {most}")
    return value


def gated_decoder(config: Mapping[str, Any], family: str, traits: Traits) -> ModelSpec:
    """The spec of a pre-norm decoder with rotary positions, grouped queries and a gated MLP."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    head = integer(config, "head_dim", hidden // heads or None)
    act = str(config.get("hidden_act", "silu"))
    if heads % kv_heads:
        raise CheckpointError(
            f"config: {heads} heads do not divide over num_key_value_heads = {kv_heads}"
        )
    if head % 2:
        raise CheckpointError(
            f"config: head_dim = {head} is odd; rotary positions need an even one"
        )
    if act not in ACTS:
        raise CheckpointError(
            f"config: hidden_act = {shown(act)} is not supported; known: {', '.join(ACTS)}"
        )
    layer = LayerSpec(
        heads=heads,
        head=head,
        kv=KVGroup(kv_heads, head, head),
        inner=integer(config, "intermediate_size"),
        act=ACTS[act],
        qk_norm=traits.qk_norm,
        attn_bias=traits.attn_bias,
        out_bias=traits.out_bias,
        mlp_bias=traits.mlp_bias,
    )
    return ModelSpec(
        family=family,
        hidden=hidden,
        vocab=integer(config, "vocab_size"),
        context=integer(config, "max_position_embeddings", 2048, MOST_POSITIONS),
        eps=real(config, "rms_norm_eps", 1e-6),
        rope=rope_spec(config, head),
        layers=(layer,) * integer(config, "num_hidden_layers", most=MAX_LAYERS),
        tie=bool(config.get("tie_word_embeddings", False)),
    )


def decoder_plan(spec: ModelSpec) -> WeightPlan:
    """The slots of a gated decoder under the tensor names Hugging Face publishes."""
    slots = [
        _slot("embed", (spec.vocab, spec.hidden), ("model.embed_tokens",), kind="embed", shard=0)
    ]
    for i, layer in enumerate(spec.layers):
        slots += _layer_slots(i, layer, spec.hidden)
    slots.append(_slot("norm", (spec.hidden,), ("model.norm",), kind="vector"))
    if not spec.tie:
        slots.append(_slot("head", (spec.vocab, spec.hidden), ("lm_head",), shard=0))
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq", "rope_freqs.weight")
    return WeightPlan(tuple(slots), ignored + (("lm_head.weight",) if spec.tie else ()))


def _layer_slots(i: int, layer: LayerSpec, hidden: int) -> list[SlotPlan]:
    at, src = f"layers.{i}.", f"model.layers.{i}."
    q, kv, inner = layer.heads * layer.head, layer.kv.heads * layer.head, layer.inner
    attn = tuple(f"{src}self_attn.{x}_proj" for x in "qkv")
    mlp = (f"{src}mlp.gate_proj", f"{src}mlp.up_proj")
    turn = (layer.heads, layer.kv.heads, 0)
    slots = [
        _slot(at + "attn_norm", (hidden,), (src + "input_layernorm",), kind="vector"),
        _slot(
            at + "qkv", (q + 2 * kv, hidden), attn, (q, kv, kv), 0, layer.attn_bias, permute=turn
        ),
        _slot(at + "out", (hidden, q), (src + "self_attn.o_proj",), shard=1, biased=layer.out_bias),
        _slot(at + "mlp_norm", (hidden,), (src + "post_attention_layernorm",), kind="vector"),
        _slot(at + "gate_up", (2 * inner, hidden), mlp, (inner, inner), 0, layer.mlp_bias),
        _slot(
            at + "down", (hidden, inner), (src + "mlp.down_proj",), shard=1, biased=layer.mlp_bias
        ),
    ]
    if layer.qk_norm:
        for name in ("q_norm", "k_norm"):
            slots.append(
                _slot(at + name, (layer.head,), (f"{src}self_attn.{name}",), kind="vector")
            )
    return slots


def _slot(
    name: str,
    shape: tuple[int, ...],
    modules: tuple[str, ...],
    rows: tuple[int, ...] = (),
    shard: int | None = None,
    biased: bool = False,
    kind: str = "linear",
    permute: tuple[int, ...] = (),
) -> SlotPlan:
    sources = tuple(m + ".weight" for m in modules)
    bias = tuple(m + ".bias" for m in modules) if biased else ()
    return SlotPlan(name, shape, sources, rows or shape[:1], kind, shard, permute, bias)
