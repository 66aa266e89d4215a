"""Checks an exported file against the checkpoint: an independent forward pass and held-out loss.

The GGUF is read back by the `gguf` package, dequantised, re-ordered for transformers' Llama and run
in float32. Without quantisation both must agree to rounding; with it, the loss may move a little.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
import torch
from rotary import split_halves
from stories import split_excerpt
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from train import IGNORE, encode, held_out_loss, load_model, pad
from transformers import LlamaConfig, LlamaForCausalLM

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def read(path: Path) -> LlamaForCausalLM:
    """The file as transformers' Llama, every tensor used and every weight filled."""
    reader = gguf.GGUFReader(path)

    def value(key: str) -> float:
        return reader.get_field(f"llama.{key}").contents()

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_theta=value("rope.freq_base"),
        tie_word_embeddings=True,
    )
    state = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, kind = stem.split(".")
            if kind in ("attn_q", "attn_k"):
                array = split_halves(array, heads if kind == "attn_q" else kv_heads)
            name = f"model.layers.{layer}.{_NAMES[kind]}"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[stem]
        state[f"{name}.weight"] = torch.from_numpy(np.array(array))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.eval()


class Logits(torch.nn.Module):
    """transformers' Llama with the small model's signature."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids).logits


def requantised(checkpoint: Path) -> torch.nn.Module:
    """The checkpoint's own network with its matrices rounded to Q8_0, norms as they are."""
    model = load_model(checkpoint)
    kind = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for weight in (model.embed, *model.matrices()):
            packed = gguf.quants.quantize(weight.numpy(), kind)
            weight.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--excerpt", type=Path, required=True)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    _, texts = split_excerpt(args.excerpt)
    stories = encode(tokenizer, texts, 512)
    exported, rounded = Logits(read(args.file)), requantised(args.checkpoint)
    ids, targets = pad(stories[:4])
    with torch.no_grad():
        gap = (exported(ids) - rounded(ids))[targets != IGNORE].abs().max().item()
    print(f"largest logit difference from the rounded checkpoint: {gap:.2e}")
    if gap > 1e-3:
        raise SystemExit("the file does not hold the checkpoint")
    loss, original = (held_out_loss(m, stories) for m in (exported, load_model(args.checkpoint)))
    tokens = sum(len(story) - 1 for story in stories)
    size = sum(len(text.encode()) for text in texts)
    bits = loss * tokens / size / np.log(2)
    print(f"held-out loss {loss:.4f} per token ({bits:.4f} bits per byte, {tokens} tokens)")
    print(f"before rounding to Q8_0: {original:.4f}")
    ids = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(200):
        with torch.no_grad():
            chosen = F.softmax(exported(ids)[0, -1] / 0.8, -1).multinomial(1)
        if chosen.item() == 0:
            break
        ids = torch.cat((ids, chosen[None]), dim=1)
    print(tokenizer.decode(ids[0].tolist()))


if __name__ == "__main__":
    main()
