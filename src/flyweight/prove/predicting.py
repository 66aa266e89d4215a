"""A model with a multi-token prediction layer, as `draft/mtp.py` reads it, of random weights.

A token's row of the output matrix is the embedding of the token before it in a random cycle.  So
the model generates the cycle, and a prediction layer that passes on a token's embedding predicts
it.

Invariant: a DeepSeek-V3 folder (config.json, tokenizer.json, safetensors) without experts, in
bfloat16, with the vocabulary of the model inside the package.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from flyweight.ops.base import to_bf16_bits
from flyweight.quantize.output.container import OutputTensor, SafetensorsWriter
from flyweight.wire import F32

HIDDEN, INNER, LAYERS, HEADS, CONTEXT = 768, 2048, 8, 12, 512
RANK, ROPE, NOPE, VALUE = 256, 32, 64, 64
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "q_lora_rank": None,
    "kv_lora_rank": RANK,
    "qk_rope_head_dim": ROPE,
    "qk_nope_head_dim": NOPE,
    "v_head_dim": VALUE,
    "first_k_dense_replace": LAYERS + 1,  # every layer, and the one that predicts
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
}
LAYER = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HEADS * (NOPE + ROPE), HIDDEN),
    "self_attn.kv_a_proj_with_mqa": (RANK + ROPE, HIDDEN),
    "self_attn.kv_a_layernorm": (RANK,),
    "self_attn.kv_b_proj": (HEADS * (NOPE + VALUE), RANK),
    "self_attn.o_proj": (HIDDEN, HEADS * VALUE),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
SPREAD = 0.02  # standard deviation of a random weight
EMBED_SPREAD = 0.1  # of embeddings: the smaller, the more the layers change the next token
EMBED, HEAD, JOIN = "model.embed_tokens.weight", "lm_head.weight", "eh_proj.weight"


def write_predicting_folder(folder: Path, metadata: Mapping[str, Any]) -> int:
    """Writes the model into a new `folder`, with the byte-level BPE vocabulary of a GGUF file's
    `metadata`; returns how many weights it has.
    """
    folder.mkdir()
    pieces = [str(piece) for piece in metadata["tokenizer.ggml.tokens"]]
    ends = int(metadata["tokenizer.ggml.eos_token_id"])
    config = CONFIG | {"vocab_size": len(pieces), "bos_token_id": ends, "eos_token_id": ends}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    merges = [str(merge) for merge in metadata["tokenizer.ggml.merges"]]
    (folder / "tokenizer.json").write_text(make_tokenizer(pieces, merges, ends), "utf-8")
    shapes = list_shapes(len(pieces))
    entries = [OutputTensor(name, "bf16", shape) for name, shape in shapes.items()]
    with SafetensorsWriter(folder / "model.safetensors", entries, {"format": "pt"}) as out:
        for name, values in draw_tensors(shapes):
            out.write(name, to_bf16_bits(values).tobytes())
    return sum(int(np.prod(shape)) for shape in shapes.values())


def make_tokenizer(pieces: list[str], merges: list[str], ends: int) -> str:
    """tokenizer.json of a byte-level BPE."""
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(pieces[ends], special=True)])
    return str(made.to_str())


def list_shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    """Every tensor, the prediction layer's among them."""
    found: dict[str, tuple[int, ...]] = {
        EMBED: (vocab, HIDDEN), "model.norm.weight": (HIDDEN,), HEAD: (vocab, HIDDEN)
    }  # fmt: skip
    for i in range(LAYERS + 1):
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in LAYER.items()}
    at = f"model.layers.{LAYERS}."
    found |= {f"{at}{name}.weight": (HIDDEN,) for name in ("enorm", "hnorm", "shared_head.norm")}
    return found | {f"{at}{JOIN}": (HIDDEN, 2 * HIDDEN)}


def draw_tensors(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, F32]]:
    """Norms are ones, the join takes the embedding and leaves the state, other matrices are
    random.
    """
    draw = np.random.default_rng(0)
    embeddings = EMBED_SPREAD * draw.standard_normal(shapes[EMBED], np.float32)
    cycle = draw.permutation(len(embeddings))
    head = np.empty_like(embeddings)
    head[np.roll(cycle, -1)] = embeddings[cycle]  # what follows a token in the cycle
    for name, shape in shapes.items():
        if name == EMBED:
            yield name, embeddings
        elif name == HEAD:
            yield name, head
        elif name.endswith(JOIN):
            yield name, np.eye(*shape, dtype=np.float32)
        elif len(shape) == 1:
            yield name, np.ones(shape, np.float32)
        else:
            yield name, SPREAD * draw.standard_normal(shape, np.float32)
