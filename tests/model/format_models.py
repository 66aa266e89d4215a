"""Small models of four families as GGUF files whose matrices are all of one type, for ranks: a rank
of two has whole blocks of every matrix, not always as many as the other.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from filewriters import BLOCKS, Tensor, encode, random_tensor, write_gguf
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.formats import FORMATS
from flyweight.weights.formats.values import to_f32
from flyweight.wire import F32

HIDDEN, INNER, VOCAB, LAYERS, EXPERTS = 256, 768, 61, 2, 3
HEADS, STORED, HEAD = 4, 2, 128
FAMILIES = ("llama", "qwen3", "gemma3", "mixtral")
METADATA: dict[str, object] = {
    "embedding_length": HIDDEN,
    "block_count": LAYERS,
    "attention.head_count": HEADS,
    "attention.head_count_kv": STORED,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "rope.dimension_count": HEAD,
    "rope.freq_base": 10000.0,
    "feed_forward_length": INNER,
    "context_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
EXTRA: dict[str, dict[str, object]] = {
    "mixtral": {"expert_count": EXPERTS, "expert_used_count": 2},
    "gemma3": {
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": np.array([True, False]),
        "rope.freq_base_swa": 1000.0,
    },
}
NORMS = {
    "llama": ("attn_norm", "ffn_norm"),
    "mixtral": ("attn_norm", "ffn_norm"),
    "qwen3": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
    "gemma3": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm",
               "post_ffw_norm"),
}  # fmt: skip


def write_model(
    path: Path, family: str, kind: str, words: Mapping[str, object] | None = None
) -> Path:
    """The same at every call; `words` are metadata of a tokenizer."""
    rng = np.random.default_rng(5)
    arch = "llama" if family == "mixtral" else family
    metadata = {f"{arch}.{k}": v for k, v in (METADATA | EXTRA.get(family, {})).items()}
    tensors: dict[str, Tensor] = {}
    for name, shape in list_matrices(family).items():
        tensors[name] = make_matrix(rng, "f32" if "gate_inp" in name else kind, shape)
    for name, size in list_norms(family).items():
        tensors[name] = encode(rng.uniform(0.5, 1.5, size), "f32")
    return write_gguf(path, {"general.architecture": arch, **metadata, **(words or {})}, tensors)


def list_matrices(family: str) -> Mapping[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN)}
    if family != "gemma3":  # whose head is its embedding
        found["output.weight"] = (VOCAB, HIDDEN)
    for i in range(LAYERS):
        rows = {"q": HEADS * HEAD, "k": STORED * HEAD, "v": STORED * HEAD}
        found |= {f"blk.{i}.attn_{part}.weight": (n, HIDDEN) for part, n in rows.items()}
        found[f"blk.{i}.attn_output.weight"] = (HIDDEN, HEADS * HEAD)
        many, tail = ((EXPERTS,), "_exps") if family == "mixtral" else ((), "")
        for part in ("gate", "up"):
            found[f"blk.{i}.ffn_{part}{tail}.weight"] = (*many, INNER, HIDDEN)
        found[f"blk.{i}.ffn_down{tail}.weight"] = (*many, HIDDEN, INNER)
        if many:
            found[f"blk.{i}.ffn_gate_inp.weight"] = (EXPERTS, HIDDEN)
    return found


def list_norms(family: str) -> Mapping[str, int]:
    found = {"output_norm.weight": HIDDEN}
    for i in range(LAYERS):
        for name in NORMS[family]:
            size = HEAD if name in ("attn_q_norm", "attn_k_norm") else HIDDEN
            found[f"blk.{i}.{name}.weight"] = size
    return found


def make_matrix(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Tensor:
    """Random values of about unit gain, whose mean is near 0."""
    if not FORMATS[kind].quantised or kind == "q8_0":
        return encode(rng.standard_normal(shape) / np.sqrt(shape[-1]), kind)
    most = 0.1
    gain = read_values(random_tensor(rng, kind, (64, 256), most)).std() * np.sqrt(shape[-1])
    return negate_blocks(rng, random_tensor(rng, kind, shape, most / float(gain)))


def negate_blocks(rng: np.random.Generator, tensor: Tensor) -> Tensor:
    """Half of the blocks with scales and minima of the other sign, where those are float16."""
    kind, shape, raw = tensor
    _, _, nbytes, places = BLOCKS[kind]
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, nbytes).copy()
    signs = np.where(rng.random(len(blocks)) < 0.5, 0x80, 0).astype(np.uint8)
    for at in places:
        blocks[:, at + 1] ^= signs
    return kind, shape, blocks.tobytes()


def read_values(tensor: Tensor) -> F32:
    kind, shape, raw = tensor
    rows = FORMATS[kind].parse(np.frombuffer(raw, np.uint8), shape)
    return rows.dequantize() if isinstance(rows, GroupedWeight) else to_f32(rows)
