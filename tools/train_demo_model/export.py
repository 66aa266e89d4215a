"""Writes a checkpoint as a GGUF v3 file: Q8_0 matrices, float32 norms, tokenizer inside.

Follows the GGUF specification's `llama` architecture: tensors [out, in], and the rows of the query
and key projections re-ordered from rotary pairs (i, i + head/2) to the format's (2i, 2i + 1).
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
from rotary import interleave
from stories import SEPARATOR
from train import load_model

from model import Llama

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def tensors(model: Llama) -> dict[str, np.ndarray]:
    """GGUF tensor name -> float32 array, fused projections cut apart."""
    shape = model.shape
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    named = {"token_embd": state["embed"], "output_norm": state["out_norm"]}
    for layer in range(shape.layers):
        queries, keys = shape.qkv[0], shape.qkv[0] + shape.qkv[1]
        q, k, v = np.split(state["qkv"][layer], (queries, keys))
        gate, up = np.split(state["gate_up"][layer], 2)
        parts = {
            "attn_norm": state["attn_norm"][layer],
            "attn_q": interleave(q, shape.heads),
            "attn_k": interleave(k, shape.kv_heads),
            "attn_v": v,
            "attn_output": state["attn_out"][layer],
            "ffn_norm": state["ffn_norm"][layer],
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": state["down"][layer],
        }
        named |= {f"blk.{layer}.{name}": value for name, value in parts.items()}
    return {f"{name}.weight": value for name, value in named.items()}


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Path) -> None:
    model = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if piece == SEPARATOR else gguf.TokenType.NORMAL for piece in pieces
    ]
    end = model["vocab"][SEPARATOR]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def add_network(writer: gguf.GGUFWriter, model: Llama, name: str) -> None:
    shape = model.shape
    writer.add_name(name)
    writer.add_description("Short English children's stories; trained from scratch for flyweight.")
    writer.add_license("cdla-sharing-1.0")
    writer.add_languages(["en"])
    writer.add_size_label(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2g}M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.dim)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)


def export(model: Llama, tokenizer: Path, name: str, out: Path) -> None:
    writer = gguf.GGUFWriter(str(out), "llama")
    add_network(writer, model, name)
    add_vocabulary(writer, tokenizer)
    for tensor, value in tensors(model).items():
        if value.ndim == 1:
            writer.add_tensor(tensor, value)
        else:
            writer.add_tensor(tensor, gguf.quants.quantize(value, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--name", required=True, help="general.name")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = load_model(args.checkpoint)
    export(model, args.tokenizer, args.name, args.out)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
