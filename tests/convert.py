"""llama2.c checkpoints (versions 0, 1 and 2) and their tokenizers, to a Hugging Face folder or a
GGUF file.

A test helper: `python tests/convert.py MODEL.bin TOKENIZER.bin OUT [KIND]` writes a folder, or a
GGUF where OUT ends in .gguf; KIND is f32 (the default), or q8_0 for a GGUF. llama2.c rotates
adjacent pairs, as GGUF's llama does; Hugging Face pairs element i with i + D/2, so for the folder
the rows of q and k are reordered.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filewriters import Tensor, encode, write_folder, write_gguf

F32 = NDArray[np.float32]
MAGIC = 0x616B3432
MATRICES = ("q", "k", "v", "o", "gate", "down", "up")
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


@dataclass(frozen=True)
class Shape:
    """The header: seven numbers, and whether embedding and classifier are one."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool

    @property
    def head(self) -> int:
        return self.dim // self.heads

    def matrix(self, name: str) -> tuple[int, int]:
        kv = self.head * self.kv_heads
        rows = {"q": self.dim, "k": kv, "v": kv, "o": self.dim, "down": self.dim}
        return rows.get(name, self.hidden), self.hidden if name == "down" else self.dim


@dataclass(frozen=True)
class Model:
    """float32 tensors; those of the layers stacked, under the short names above: [L, N, K] or [L,
    H].
    """

    shape: Shape
    embed: F32
    norm: F32
    head: F32 | None
    layers: dict[str, F32]


def read_model(path: Path) -> Model:
    """Any of the three versions."""
    raw = path.read_bytes()
    magic, version = unpack_from("<Ii", raw)
    if magic != MAGIC:
        return _read_legacy(raw)
    *numbers, shared = unpack_from("<7iB", raw, 8)
    shape = Shape(*numbers, tied=bool(shared))
    if version == 1:
        return _read_floats(raw, shape)
    (group,) = unpack_from("<i", raw, 37)
    return _read_int8(raw, shape, group)


class _Floats:
    """Takes float32 arrays one after another, from byte `at` on."""

    def __init__(self, raw: bytes, at: int) -> None:
        self.raw, self.at = raw, at

    def take(self, *shape: int) -> F32:
        found = np.frombuffer(self.raw, "<f4", int(np.prod(shape)), self.at).reshape(shape)
        self.at += found.nbytes
        return found.astype(np.float32)

    def int8(self, group: int, *shape: int) -> F32:
        """int8 codes, then a float32 scale for every `group` of them."""
        count = int(np.prod(shape))
        codes = np.frombuffer(self.raw, np.int8, count, self.at).reshape(-1, group)
        self.at += count
        return (codes.astype(np.float32) * self.take(count // group, 1)).reshape(shape)


def _read_legacy(raw: bytes) -> Model:
    *numbers, vocab, context = unpack_from("<7i", raw)
    s = Shape(*numbers, abs(vocab), context, tied=vocab > 0)
    f, each = _Floats(raw, 28), s.layers
    embed = f.take(s.vocab, s.dim)
    layers = {"attn_norm": f.take(each, s.dim)}
    layers |= {name: f.take(each, *s.matrix(name)) for name in ("q", "k", "v", "o")}
    layers["mlp_norm"] = f.take(each, s.dim)
    layers |= {name: f.take(each, *s.matrix(name)) for name in ("gate", "down", "up")}
    norm = f.take(s.dim)
    f.take(2, s.context, s.head // 2)  # two tables of angles nobody reads
    head = None if s.tied else f.take(s.vocab, s.dim)
    assert f.at == len(raw), "the file is longer than its header says"
    return Model(s, embed, norm, head, layers)


def _read_floats(raw: bytes, s: Shape) -> Model:
    f, each = _Floats(raw, 256), s.layers
    layers = {"attn_norm": f.take(each, s.dim), "mlp_norm": f.take(each, s.dim)}
    norm, embed = f.take(s.dim), f.take(s.vocab, s.dim)
    layers |= {name: f.take(each, *s.matrix(name)) for name in MATRICES}
    head = None if s.tied else f.take(s.vocab, s.dim)
    assert f.at == len(raw), "the file is longer than its header says"
    return Model(s, embed, norm, head, layers)


def _read_int8(raw: bytes, s: Shape, group: int) -> Model:
    f, each = _Floats(raw, 256), s.layers
    layers = {"attn_norm": f.take(each, s.dim), "mlp_norm": f.take(each, s.dim)}
    norm, embed = f.take(s.dim), f.int8(group, s.vocab, s.dim)
    for name in MATRICES:
        layers[name] = np.stack([f.int8(group, *s.matrix(name)) for _ in range(each)])
    head = None if s.tied else f.int8(group, s.vocab, s.dim)
    assert f.at == len(raw), "the file is longer than its header says"
    return Model(s, embed, norm, head, layers)


def half_split(x: F32, heads: int) -> F32:
    """[heads * D, K] from adjacent pairs to pairs D/2 apart."""
    rows, columns = x.shape
    return x.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


# --- tokenizer ---


@dataclass(frozen=True)
class Vocabulary:
    """Pieces with visible spaces, `<s>` and `</s>` by their names; scores fall with merge rank."""

    pieces: list[str]
    scores: list[float]


def read_vocabulary(path: Path, size: int) -> Vocabulary:
    raw, at = path.read_bytes(), 4
    pieces, scores = [], []
    for _ in range(size):
        score, length = unpack_from("<fi", raw, at)
        at += 8 + length
        pieces.append(raw[at - length : at].decode().replace(" ", "\u2581"))
        scores.append(score)
    assert at == len(raw), "the vocabulary is not the model's"
    pieces[:3] = ["<unk>", "<s>", "</s>"]
    return Vocabulary(pieces, scores)


def tokenizer_metadata(vocabulary: Vocabulary) -> dict[str, object]:
    """GGUF's `tokenizer.ggml.*`: unknown, two control tokens, 256 bytes, then ordinary pieces."""
    count = len(vocabulary.pieces)
    types = np.array([2, 3, 3, *[6] * 256, *[1] * (count - 259)], np.int32)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": vocabulary.pieces,
        "tokenizer.ggml.scores": np.array(vocabulary.scores, np.float32),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The same vocabulary for the `tokenizers` library: merges in the order the scores give."""
    special = [
        {"id": i, "content": piece, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, piece in enumerate(vocabulary.pieces[:3])
    ]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [bos, text, second],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(vocabulary.pieces)},
            "merges": [list(pair) for pair in _merges(vocabulary)],
        },
    }


def _merges(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first, then by the halves' ids."""
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if i >= 259}
    found = []
    for piece, i in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-vocabulary.scores[i], ids[left], ids[right], left, right))
    return ((left, right) for *_, left, right in sorted(found))


# --- the two outputs ---


def hf_config(s: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": s.dim,
        "intermediate_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head,
        "vocab_size": s.vocab,
        "max_position_embeddings": s.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": s.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def hf_tensors(model: Model, kind: str = "f32") -> dict[str, Tensor]:
    """Under Hugging Face names, q and k in half-split order."""
    heads = {"q": model.shape.heads, "k": model.shape.kv_heads}
    found = {"model.embed_tokens.weight": encode(model.embed, kind)}
    for i in range(model.shape.layers):
        for short, name in HF_NAMES.items():
            x = model.layers[short][i]
            x = half_split(x, heads[short]) if short in heads else x
            found[f"model.layers.{i}.{name}.weight"] = encode(x, kind)
    found["model.norm.weight"] = encode(model.norm, kind)
    if model.head is not None:
        found["lm_head.weight"] = encode(model.head, kind)
    return found


def to_folder(model: Path, tokenizer: Path, out: Path, kind: str = "f32", shards: int = 1) -> Path:
    """A folder with config.json, tokenizer.json, tokenizer_config.json and safetensors of f32, f16
    or bf16.
    """
    source = read_model(model)
    write_folder(out, hf_config(source.shape), hf_tensors(source, kind), shards)
    vocabulary = read_vocabulary(tokenizer, source.shape.vocab)
    (out / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary), ensure_ascii=False))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    flags = {"add_bos_token": True, "add_eos_token": False}
    (out / "tokenizer_config.json").write_text(json.dumps(named | flags))
    return out


def to_gguf(model: Path, tokenizer: Path, out: Path, kind: str = "f32") -> Path:
    """One file; matrices whose rows are no whole q8_0 blocks, and vectors, stay f32."""
    source = read_model(model)
    s = source.shape

    def matrix(x: F32) -> Tensor:
        return encode(x, "f32" if kind == "q8_0" and x.shape[1] % 32 else kind)

    tensors = {
        "token_embd.weight": matrix(source.embed),
        "output_norm.weight": encode(source.norm, "f32"),
    }
    if source.head is not None:
        tensors["output.weight"] = matrix(source.head)
    for i in range(s.layers):
        for short, name in GGUF_NAMES.items():
            x = source.layers[short][i]
            tensors[f"blk.{i}.{name}.weight"] = encode(x, "f32") if x.ndim == 1 else matrix(x)
    numbers = {
        "context_length": s.context,
        "embedding_length": s.dim,
        "block_count": s.layers,
        "feed_forward_length": s.hidden,
        "rope.dimension_count": s.head,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    metadata = {"general.architecture": "llama", "general.name": out.stem}
    metadata |= {f"llama.{name}": x for name, x in numbers.items()}
    return write_gguf(
        out, metadata | tokenizer_metadata(read_vocabulary(tokenizer, s.vocab)), tensors
    )


if __name__ == "__main__":
    binary, pieces, target = (Path(x) for x in sys.argv[1:4])
    (to_gguf if target.suffix == ".gguf" else to_folder)(binary, pieces, target, *sys.argv[4:5])
