"""Models of published shapes with random weights, made on the device: speed does not depend on the
values.  Sizes and names are those of the published config.json files.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flyweight.models.decoder import Decoder, SingleProcess
from flyweight.models.linear import Parts
from flyweight.models.registry import find_family
from flyweight.ops.cuda import CudaOps
from flyweight.ops.cuda.weights import CudaWeight, from_dense, quantise_on_device
from flyweight.spec import Files, ModelSpec

SPREAD = 0.02  # standard deviation of a weight
KINDS = {"bf16": "", "fp8": "e4m3_rows", "q4_0": "q4_0", "u4_g128": "u4_g128", "q8_0": "q8_0"}


def _config(family: str, layers: int, hidden: int, heads: int, kv: int, inner: int,
            vocab: int, **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": family, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": inner,
        "vocab_size": vocab, "head_dim": 128, "hidden_act": "silu", **more,
    }  # fmt: skip


QWEN: dict[str, Any] = {
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960,
}  # fmt: skip
CONFIGS = {
    "llama-3.1-8b": _config(
        "llama", 32, 4096, 32, 8, 14336, 128256, rms_norm_eps=1e-5, rope_theta=5e5,
        max_position_embeddings=131072,
    ),
    "qwen3-0.6b": _config(
        "qwen3", 28, 1024, 16, 8, 3072, 151936, tie_word_embeddings=True, **QWEN
    ),
    "qwen3-14b": _config("qwen3", 40, 5120, 40, 8, 17408, 151936, **QWEN),
    "qwen3-30b-a3b": _config(
        "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
        **QWEN,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class RandomModel:
    """A decoder whose matrices are of one kind.  `matrices` are the bytes that a step reads at one
    sequence: all experts of a mixture are in `held`, the chosen ones alone in `matrices`.
    """

    name: str
    kind: str
    spec: ModelSpec
    decoder: Decoder
    ops: CudaOps
    matrices: int
    held: int
    weights: int  # numbers in the matrices that a token is multiplied with


def make_model(name: str, kind: str, ops: CudaOps, length: int = 8192) -> RandomModel:
    """Matrices of `kind`; the embedding, and with it a tied head, stays in bf16."""
    config = CONFIGS[name]
    family = find_family(config)
    spec = family.read_spec(config)
    generator = torch.Generator(device=ops.device).manual_seed(0)
    weights: dict[str, Any] = {}
    read = held = count = 0
    for slot in family.plan(spec, Files()).slots:
        if slot.kind == "vector":
            weights[slot.name] = np.ones(slot.shape, np.float32)
            continue
        shape = (slot.shape[0], slot.shape[1])
        packed = _make_weight(shape, "bf16" if slot.kind == "embed" else kind, ops, generator)
        weights[slot.name] = packed
        held += packed.nbytes
        share = _find_share(slot.name, spec)
        if slot.kind != "embed" or spec.tie:
            read += int(packed.nbytes * share)
            count += int(shape[0] * shape[1] * share)
    parts = Parts(ops, SingleProcess(), spec, weights)
    return RandomModel(name, kind, spec, Decoder(parts, length), ops, read, held, count)


def _find_share(slot: str, spec: ModelSpec) -> float:
    """The share of a matrix that one token uses: an expert's, of those that there are."""
    moe = spec.layers[0].moe
    part = slot.split(".")
    if moe is None or len(part) < 4 or part[2] not in ("up", "down"):
        return 1.0
    return moe.route.top / moe.route.experts


def _make_weight(
    shape: tuple[int, int], kind: str, ops: CudaOps, generator: torch.Generator
) -> CudaWeight:
    dense = torch.empty(shape, dtype=torch.bfloat16, device=ops.device)
    dense.normal_(0, SPREAD, generator=generator)
    return quantise_on_device(dense, KINDS[kind]) if KINDS[kind] else from_dense(dense)
