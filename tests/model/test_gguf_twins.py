"""Every fixture again as one GGUF file, written as the published converters write it: the same
logits.

Llama's q and k rows lie in the interleaved rope order there, and llama3 scaling comes as a tensor
of divisors: what a wrong name, permutation, key or factor would change is felt in the logits.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from harness import MODELS, decoder, logits

from filewriters import Tensor, encode, write_gguf
from flyweight.ops.base import Ops
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats.dense import to_f32

TOLERANCE = 1e-3
NAMES = sorted(p.name for p in MODELS.iterdir())
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ARCHITECTURE = {"mistral": "llama"}  # as its converters have it
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    stem, part = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{part}"
    _, _, layer, short = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[short]}.{part}"


def interleaved(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows (or bias entries) from pairs half a head apart to adjacent pairs."""
    return x.reshape(heads, 2, len(x) // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def metadata(config: dict) -> dict[str, object]:
    arch, rope = (
        ARCHITECTURE.get(config["model_type"], config["model_type"]),
        config.get("rope_parameters") or {},
    )
    head = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    keys: dict[str, object] = {
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "context_length": config["max_position_embeddings"],
        "rope.dimension_count": head,
        "rope.freq_base": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
    }
    if rope.get("rope_type") == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    return {"general.architecture": arch} | {f"{arch}.{k}": v for k, v in keys.items()}


def llama3_factors(rope: dict, head: int) -> np.ndarray:
    """One divisor for each frequency, as converters work them out."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, found = rope["original_max_position_embeddings"], []
    for i in range(0, head, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head)
        blend = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(found, np.float32)


def twin(name: str, path: Path) -> Path:
    source = open_checkpoint(MODELS / name)
    config = json.loads((MODELS / name / "config.json").read_text())
    turned = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors: dict[str, Tensor] = {}
    for key, info in source.tensors.items():
        values = to_f32(source.read(key, 0, info.shape[0]))
        heads = turned.get(key.split(".")[-2])
        if heads and config["model_type"] in ("llama", "mistral"):
            values = interleaved(values, heads)
        tensors[gguf_name(key)] = encode(values, info.kind if len(info.shape) == 2 else "f32")
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        factors = llama3_factors(rope, config["head_dim"])
        assert len(set(factors.tolist())) > 2, "stretched, blended and kept frequencies"
        tensors["rope_freqs.weight"] = encode(factors, "f32")
    return write_gguf(path, metadata(config), tensors)


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_gguf_twin(name: str, native: Ops, tmp_path: Path) -> None:
    expected = np.load(MODELS / name / "expected.npz")
    prompt, rows = expected["prompt"], expected["rows"]
    got = logits(decoder(twin(name, tmp_path / "m.gguf"), native), prompt, rows)
    assert np.abs(got - expected["logits"]).max() <= TOLERANCE
    if name != "llama3":  # whose factors were rounded on the way
        assert (got == logits(decoder(MODELS / name, native), prompt, rows)).all()
