"""A GGUF file of Qwen3-0.6B's shape with random Q4_0 weights, written in a few seconds.

Memory and speed do not depend on the values: bytes are one random megabyte over and over, with
small finite scales.  The vocabulary is the 256 byte characters and filler, or Qwen's own.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from filewriters import GGML_TYPES, entry, gguf_bytes, key

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 28, 1024, 16, 8, 128, 3072, 151936
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # token types

Shape = tuple[int, ...]


def write_06b(
    path: Path, layers: int = LAYERS, vocab: int = VOCAB, words: Mapping[str, object] | None = None
) -> Path:
    """378 MB at 28 layers; `words` are the tokenizer's metadata."""
    entries, sizes, offset = [], [], 0
    for name, shape in tensors(layers, vocab):
        kind = "q4_0" if len(shape) == 2 else "f32"
        count = int(np.prod(shape))
        size = count // BLOCK * BLOCK_BYTES if kind == "q4_0" else 4 * count
        entries.append(entry(name, shape, GGML_TYPES[kind], offset))
        sizes.append((kind, size))
        offset += size + -size % 32
    keys = [
        key(name, value) for name, value in {**metadata(layers, vocab), **(words or {})}.items()
    ]
    with open(path, "wb") as file:
        file.write(gguf_bytes(keys, entries))
        pattern = _pattern()
        for kind, size in sizes:
            if kind == "f32":
                file.write(np.ones(size // 4, np.float32).tobytes())
            else:
                _fill(file, pattern, size)
            file.write(b"\0" * (-size % 32))
    return path


def tensors(layers: int, vocab: int) -> Iterator[tuple[str, Shape]]:
    yield "token_embd.weight", (vocab, HIDDEN)
    for i in range(layers):
        at = f"blk.{i}."
        yield at + "attn_norm.weight", (HIDDEN,)
        yield at + "attn_q.weight", (HEADS * HEAD, HIDDEN)
        yield at + "attn_k.weight", (KV_HEADS * HEAD, HIDDEN)
        yield at + "attn_v.weight", (KV_HEADS * HEAD, HIDDEN)
        yield at + "attn_output.weight", (HIDDEN, HEADS * HEAD)
        yield at + "attn_q_norm.weight", (HEAD,)
        yield at + "attn_k_norm.weight", (HEAD,)
        yield at + "ffn_norm.weight", (HIDDEN,)
        yield at + "ffn_gate.weight", (INNER, HIDDEN)
        yield at + "ffn_up.weight", (INNER, HIDDEN)
        yield at + "ffn_down.weight", (HIDDEN, INNER)
    yield "output_norm.weight", (HIDDEN,)


def metadata(layers: int, vocab: int) -> dict[str, object]:
    return {
        "general.architecture": "qwen3",
        "qwen3.block_count": layers,
        "qwen3.embedding_length": HIDDEN,
        "qwen3.feed_forward_length": INNER,
        "qwen3.attention.head_count": HEADS,
        "qwen3.attention.head_count_kv": KV_HEADS,
        "qwen3.attention.key_length": HEAD,
        "qwen3.attention.value_length": HEAD,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.context_length": 40960,
        "qwen3.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": vocabulary(vocab),
        "tokenizer.ggml.token_type": np.ones(vocab, np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": vocab - 1,
    }


def qwen_words(folder: Path, vocab: int = VOCAB) -> dict[str, object]:
    """Qwen3's vocabulary, merges and chat template as a converter writes them, from its files."""
    ids: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    config: dict[str, Any] = json.loads((folder / "qwen3_tokenizer_config.json").read_text())
    added: dict[str, dict[str, Any]] = config["added_tokens_decoder"]
    tokens = [f"[PAD{i}]" for i in range(vocab)]
    types = np.full(vocab, UNUSED, np.int32)
    for piece, i in ids.items():
        tokens[i], types[i] = piece, NORMAL
    for number, token in added.items():
        i = int(number)
        tokens[i], types[i] = token["content"], CONTROL if token["special"] else USER_DEFINED
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    return {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": lines[1:],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": config["chat_template"],
    }


def vocabulary(vocab: int) -> list[str]:
    """GPT-2's characters for bytes, and words nobody writes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    odd = [b for b in range(256) if b not in plain]
    characters = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(odd))]
    return characters + [f"Ġ{i}" for i in range(vocab - 256)]


def _pattern() -> bytes:
    """About a megabyte of Q4_0 blocks: an f16 scale and 16 bytes of nibbles."""
    blocks = np.random.default_rng(0).integers(0, 256, (58000, BLOCK_BYTES), dtype=np.uint8)
    scales = np.random.default_rng(1).uniform(0.002, 0.004, len(blocks)).astype(np.float16)
    blocks[:, :2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def _fill(file: BinaryIO, pattern: bytes, size: int) -> None:
    for _ in range(size // len(pattern)):
        file.write(pattern)
    file.write(pattern[: size % len(pattern)])
