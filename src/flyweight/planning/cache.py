"""Bytes of the K/V cache: by the founding document's formula, and by kind of attention.

Invariant: `count_model_bytes` is what flyweight stores for a sequence; `count_visible_bytes` what
its layers can still see.  Knows specs, no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from flyweight.spec import KV_TYPES, KVGroup, KVType, LayerSpec, ModelSpec

FORMULA = "2 x L x heads x d_head x s x b x bytes"
# DeepSeek-AI, 2024, "DeepSeek-V2", section 2.1.4: a latent of 4 d_head elements, and d_head / 2
# rotated ones.
LATENT_HEADS = 4.5
GROUPED = 8  # K/V heads where the model has no groups of its own, as in Llama 2 70B


@dataclass(frozen=True, slots=True)
class CacheDimensions:
    """What the founding document's formula takes: layers, query heads, elements of a head."""

    layers: int
    heads: int
    head: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "CacheDimensions":
        first = spec.layers[0]
        return cls(len(spec.layers), first.heads, first.head)


def count_seed_bytes(size: CacheDimensions, s: int, b: int, nbytes: float) -> float:
    """2 x L x heads x d_head x s x b x bytes: of the lesson "LLM Inference Optimization", section
    on the K/V cache; s tokens, b sequences.  It counts query heads, so with grouped queries it is
    too high.
    """
    return 2 * size.layers * size.heads * size.head * s * b * nbytes


def count_model_bytes(spec: ModelSpec, s: int, kind: KVType) -> int:
    """Bytes of a sequence of s tokens, as the model stores them."""
    return s * sum(kind.count_bytes(layer.kv) for layer in spec.layers)


def count_visible_bytes(spec: ModelSpec, s: int, kind: KVType) -> int:
    """The same, of layers with a sliding window or chunks only the positions that can be seen."""
    return sum(
        min(s, layer.kv.window or s, layer.kv.chunk or s) * kind.count_bytes(layer.kv)
        for layer in spec.layers
    )


def count_by_attention(spec: ModelSpec, s: int, kind: KVType) -> Mapping[str, int]:
    """Bytes of a sequence if all layers had this kind of attention, with the model's heads."""

    def count(groups: list[KVGroup]) -> int:
        return s * sum(map(kind.count_bytes, groups))

    return MappingProxyType(
        {
            "MHA": count([_group(layer, layer.heads) for layer in spec.layers]),
            "GQA": count([_group(layer, _count_groups(layer)) for layer in spec.layers]),
            "MQA": count([_group(layer, 1) for layer in spec.layers]),
            "MLA": count([_latent(layer) for layer in spec.layers]),
        }
    )


def name_attention(spec: ModelSpec) -> str:
    """MHA, GQA, MQA or MLA: the first layer's."""
    layer = spec.layers[0]
    if layer.latent is not None:
        return "MLA"
    if layer.kv.heads == layer.heads:
        return "MHA"
    return "MQA" if layer.kv.heads == 1 else "GQA"


def count_batch(allowed: float, weights: float, sequence: float) -> int:
    """Sequences whose K/V fits what weights leave of a memory."""
    return max(0, int((allowed - weights) // sequence))


def find_type(name: str) -> KVType:
    """A K/V type; "auto" is bf16, which has two bytes."""
    return KV_TYPES["bf16" if name == "auto" else name]


def _group(layer: LayerSpec, heads: int) -> KVGroup:
    """K and V of so many heads, of the size that the model's heads have."""
    if layer.latent is not None:
        return KVGroup(heads, layer.latent.plain + layer.latent.rope, layer.latent.value)
    return KVGroup(heads, layer.kv.k_dim, layer.kv.v_dim)


def _count_groups(layer: LayerSpec) -> int:
    grouped = layer.latent is None and 1 < layer.kv.heads < layer.heads
    return layer.kv.heads if grouped else min(GROUPED, layer.heads)


def _latent(layer: LayerSpec) -> KVGroup:
    if layer.latent is not None:
        return layer.kv
    width = int(LATENT_HEADS * layer.head)
    return KVGroup(1, width, width, v_in_k=True)
