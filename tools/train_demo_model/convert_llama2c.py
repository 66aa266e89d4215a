"""Converts a llama2.c model and tokenizer (.bin) to a Hugging Face directory in float32.

Reads the legacy float file and version 2 (int8 with a float scale per group), with the classifier
tied to the embedding or not. Queries and keys change from adjacent rotary pairs to half-split ones;
the vocabulary becomes a `tokenizers` BPE whose merges are ranked by the pieces' scores.
"""

import argparse
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

MAGIC = 0x616B3432
KINDS = {
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj",
    "w2": "mlp.down_proj",
    "w3": "mlp.up_proj",
}


@dataclass(frozen=True, slots=True)
class Header:
    """The seven sizes every version begins with, and how the rest is stored."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool
    group: int  # 0: float32
    size: int  # bytes before the first tensor

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        dim, kv = self.dim, self.dim // self.heads * self.kv_heads
        attention = {"wq": (dim, dim), "wk": (kv, dim), "wv": (kv, dim), "wo": (dim, dim)}
        wide, narrow = (self.hidden, dim), (dim, self.hidden)
        return attention | {"w1": wide, "w2": narrow, "w3": wide}


def read_header(data: bytes) -> Header:
    magic, version = struct.unpack_from("<Ii", data)
    if magic != MAGIC:
        *sizes, vocab, context = struct.unpack_from("<7i", data)
        return Header(*sizes, abs(vocab), context, tied=vocab > 0, group=0, size=28)
    if version != 2:
        raise SystemExit(f"llama2.c version {version} is not read; legacy and 2 are")
    sizes = struct.unpack_from("<7i", data, 8)
    tied, group = struct.unpack_from("<Bi", data, 36)
    return Header(*sizes, tied=bool(tied), group=group, size=256)


class Cursor:
    """Takes arrays off the file's bytes one after another."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def take(self, shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
        count = int(np.prod(shape))
        array = np.frombuffer(self._data, dtype, count, self._offset).reshape(shape)
        self._offset += array.nbytes
        return array

    def take_groups(self, shape: tuple[int, ...], group: int) -> np.ndarray:
        values = self.take((int(np.prod(shape)) // group, group), np.int8)
        scales = self.take((len(values), 1))
        return (values.astype(np.float32) * scales).reshape(shape)

    def finish(self) -> None:
        if self._offset != len(self._data):
            raise SystemExit(f"{len(self._data) - self._offset} bytes left after the last tensor")


def read_legacy(cursor: Cursor, header: Header) -> dict[str, np.ndarray]:
    layers, dim = header.layers, header.dim
    arrays = {"embed": cursor.take((header.vocab, dim)), "attn_norm": cursor.take((layers, dim))}
    shapes = header.shapes
    arrays |= {kind: cursor.take((layers, *shapes[kind])) for kind in ("wq", "wk", "wv", "wo")}
    arrays["ffn_norm"] = cursor.take((layers, dim))
    arrays |= {kind: cursor.take((layers, *shapes[kind])) for kind in ("w1", "w2", "w3")}
    arrays["norm"] = cursor.take((dim,))
    cursor.take((2, header.context, dim // header.heads // 2))  # rotary tables, unused
    if not header.tied:
        arrays["head"] = cursor.take((header.vocab, dim))
    return arrays


def read_int8(cursor: Cursor, header: Header) -> dict[str, np.ndarray]:
    layers, dim, group = header.layers, header.dim, header.group
    arrays = {"attn_norm": cursor.take((layers, dim)), "ffn_norm": cursor.take((layers, dim))}
    arrays["norm"] = cursor.take((dim,))
    arrays["embed"] = cursor.take_groups((header.vocab, dim), group)
    for kind, shape in header.shapes.items():
        arrays[kind] = np.stack([cursor.take_groups(shape, group) for _ in range(layers)])
    if not header.tied:
        arrays["head"] = cursor.take_groups((header.vocab, dim), group)
    return arrays


def split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of rotary pairs (2i, 2i + 1) within each head to pairs (i, i + head/2)."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def tensors(header: Header, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hugging Face tensor name -> float32 array."""
    named = {"model.embed_tokens.weight": arrays["embed"], "model.norm.weight": arrays["norm"]}
    if "head" in arrays:
        named["lm_head.weight"] = arrays["head"]
    rotary = {"wq": header.heads, "wk": header.kv_heads}
    for layer in range(header.layers):
        prefix = f"model.layers.{layer}"
        named[f"{prefix}.input_layernorm.weight"] = arrays["attn_norm"][layer]
        named[f"{prefix}.post_attention_layernorm.weight"] = arrays["ffn_norm"][layer]
        for kind, name in KINDS.items():
            weight = arrays[kind][layer]
            weight = split_halves(weight, rotary[kind]) if kind in rotary else weight
            named[f"{prefix}.{name}.weight"] = weight
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def config(header: Header) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": header.dim,
        "intermediate_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "vocab_size": header.vocab,
        "max_position_embeddings": header.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": header.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def read_pieces(data: bytes, count: int) -> list[tuple[str, float]]:
    """(piece, score) by id; blanks as U+2581, the three special pieces by their usual names."""
    offset, pieces = 4, []
    for _ in range(count):
        score, size = struct.unpack_from("<fi", data, offset)
        text = data[offset + 8 : offset + 8 + size].decode("utf-8")
        pieces.append((text.replace(" ", "\u2581"), score))
        offset += 8 + size
    special = [(name, 0.0) for name in ("<unk>", "<s>", "</s>")]
    return special + pieces[3:]


def tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    """Merges: every split of a piece into two pieces, best-scored piece first."""
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    merges = [
        (-score, ids[piece[:cut]], piece[:cut], piece[cut:])
        for piece, score in pieces[259:]
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    ranked = [(left, right) for _, _, left, right in sorted(merges)]
    bpe = Tokenizer(models.BPE(ids, ranked, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    blank = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    bpe.normalizer = normalizers.Sequence(blank)
    unblank = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    bpe.decoder = decoders.Sequence([*unblank, decoders.Strip(" ", 1, 0)])
    template = {"single": "<s> $A", "pair": "<s> $A $B", "special_tokens": [("<s>", 1)]}
    bpe.post_processor = processors.TemplateProcessing(**template)
    special = ("<unk>", "<s>", "</s>")
    bpe.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return bpe


def convert(model: Path, vocabulary: Path, out: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and tokenizer.json to `out`."""
    data = model.read_bytes()
    header = read_header(data)
    cursor = Cursor(data, header.size)
    arrays = read_int8(cursor, header) if header.group else read_legacy(cursor, header)
    cursor.finish()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors(header, arrays), out / "model.safetensors", metadata={"format": "pt"})
    pieces = read_pieces(vocabulary.read_bytes(), header.vocab)
    tokenizer(pieces).save(str(out / "tokenizer.json"))
    # These models begin the next story, with piece 1, where others would end theirs.
    ends = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    for name, value in (("config", config(header)), ("generation_config", ends)):
        (out / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    convert(args.model, args.tokenizer, args.out)


if __name__ == "__main__":
    main()
