"""The two real models in float32, as Hugging Face folders: what quantised files of them are
measured against.

A test helper: `python tests/full_models.py stories OUT` writes the model of the package,
`python tests/full_models.py stories3m OUT` that of FLYWEIGHT_DATA.  Both exist in 8 bits only; a
weight here is what dequantising that file gives.  The first is read with the `gguf` package, the
second by `convert`, so our readers can be checked against either.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

import convert
import flyweight
from filewriters import Tensor, encode, write_folder

F32 = NDArray[np.float32]
STORIES = Path(flyweight.__file__).parent / "assets" / "stories.gguf"
CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "rope.dimension_count",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


def write_stories(out: Path) -> Path:
    """The model of the package: float32 safetensors, config.json, tokenizer.json."""
    reader = GGUFReader(STORIES)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    return write_llama(metadata, read_tensors(reader), out)


def write_stories3m(out: Path, data: Path) -> Path:
    """The model in `stories3m` of a data folder."""
    source = data / "stories3m"
    return convert.to_folder(source / "stories3M-q80.bin", source / "tok4096.bin", out)


def read_tensors(reader: GGUFReader) -> dict[str, F32]:
    """Every tensor [N, K] in float32, under GGUF's names."""
    return {
        str(tensor.name): np.ascontiguousarray(
            dequantize(tensor.data, tensor.tensor_type), np.float32
        )
        for tensor in reader.tensors
    }


def write_llama(metadata: dict[str, Any], tensors: dict[str, F32], out: Path) -> Path:
    """A Llama of a GGUF file, whose head is the embedding, with a byte-level BPE vocabulary."""
    assert metadata["general.architecture"] == "llama" and "output.weight" not in tensors
    config = {key: metadata[f"llama.{name}"] for key, name in CONFIG_KEYS.items()}
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }
    write_folder(out, config, rename_tensors(tensors, config))
    document = make_tokenizer(metadata)
    (out / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    pieces = metadata["tokenizer.ggml.tokens"]
    settings = {
        "bos_token": pieces[config["bos_token_id"]],
        "eos_token": pieces[config["eos_token_id"]],
        "add_bos_token": metadata["tokenizer.ggml.add_bos_token"],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return out


def rename_tensors(tensors: dict[str, F32], config: dict[str, Any]) -> dict[str, Tensor]:
    """Under Hugging Face's names; GGUF's q and k pair neighbours, so their rows are reordered."""
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    found = {
        "model.embed_tokens.weight": encode(tensors["token_embd.weight"], "f32"),
        "model.norm.weight": encode(tensors["output_norm.weight"], "f32"),
    }
    for i in range(config["num_hidden_layers"]):
        for short, name in convert.HF_NAMES.items():
            x = tensors[f"blk.{i}.{convert.GGUF_NAMES[short]}.weight"]
            x = convert.half_split(x, heads[short]) if short in heads else x
            found[f"model.layers.{i}.{name}.weight"] = encode(x, "f32")
    assert len(found) == len(tensors), "a tensor has no place"
    return found


def make_tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """GPT-2's kind of tokenizer for the `tokenizers` library, with the file's pieces and merges."""
    assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    pieces, bos = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.bos_token_id"]
    special = [
        {"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for i, kind in enumerate(metadata["tokenizer.ggml.token_type"])
        if kind == 3
    ]
    first, text = {"SpecialToken": {"id": pieces[bos], "type_id": 0}}, {"id": "A", "type_id": 0}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": text}],
            "pair": [first, {"Sequence": text}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                pieces[bos]: {"id": pieces[bos], "ids": [bos], "tokens": [pieces[bos]]}
            },
        },
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


if __name__ == "__main__":
    model, target = sys.argv[1], Path(sys.argv[2])
    if model == "stories":
        write_stories(target)
    else:
        write_stories3m(target, Path(os.environ["FLYWEIGHT_DATA"]))
