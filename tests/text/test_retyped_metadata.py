"""Every key of a GGUF file given every other kind of value: a `CheckpointError` of one line, or a
model and a tokenizer that work.
"""

from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from text_vocabularies import bpe_metadata, spm_metadata

from filewriters import random_tensor, string, write_gguf
from flyweight.errors import CheckpointError
from flyweight.text.tokenizer import load_tokenizer
from flyweight.weights.checkpoint import open_checkpoint

MODEL: dict[str, object] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "split.count": 1,
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 8,
    "llama.attention.value_length": 8,
    "llama.attention.sliding_window": 0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.expert_count": 0,
    "llama.rope.dimension_count": 8,
    "llama.rope.freq_base": 1e4,
    "llama.rope.scale_linear": 1.0,
    "llama.rope.scaling.type": "linear",
    "llama.rope.scaling.factor": 2.0,
    "llama.rope.scaling.original_context_length": 64,
    "llama.vocab_size": 512,
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_space_prefix": True,
    "tokenizer.ggml.remove_extra_whitespaces": False,
    "tokenizer.ggml.precompiled_charsmap": np.empty(0, np.uint8),
    "tokenizer.chat_template.tool_use": "{{ tools }}",
}
OTHERS: dict[str, object] = {
    "text": "x",
    "no text": "",
    "controls": "\x1b[2J\r\n",
    "not UTF-8": pack("<I", 8) + string(b"\xff\xfe"),
    "true": True,
    "0": 0,
    "a million": 10**6,
    "-1 as u32": 0xFFFFFFFF,
    "-1": pack("<Iq", 11, -1),
    "-2": pack("<Iq", 11, -2),
    "2^64 - 1": pack("<IQ", 10, (1 << 64) - 1),
    "a fraction": 0.5,
    "nan": float("nan"),
    "infinity": pack("<Id", 12, float("inf")),
    "no words": [],
    "words": ["1", "2"],
    "no numbers": np.empty(0, np.uint32),
    "one number": np.ones(1, np.uint32),
    "512 bytes": np.full(512, 1, np.uint8),
    "numbers": np.arange(2, dtype=np.int64),
    "truth values": np.ones(512, np.bool_),
    "512 numbers": np.full(512, 99, np.int32),
    "512 not numbers": np.full(512, np.nan, np.float32),
    "512 infinities": np.full(512, np.inf, np.float64),
    "512 words": ["1"] * 512,
}


def gguf_ready(metadata: dict[str, Any]) -> dict[str, object]:
    """JSON's lists of numbers as the arrays a GGUF writer makes of them."""
    arrays = {
        k: np.asarray(v, np.float32 if k.endswith("scores") else np.int32)
        for k, v in metadata.items()
        if isinstance(v, list) and not isinstance(v[0], str)
    }
    end = metadata["tokenizer.ggml.eos_token_id"]
    ends = {f"tokenizer.ggml.{name}_token_id": end for name in ("eot", "eom")}
    return MODEL | metadata | arrays | ends


@pytest.mark.parametrize("vocabulary", [spm_metadata, bpe_metadata], ids=["spm", "bpe"])
def test_retyped_keys_are_refused_or_harmless(vocabulary: Any, tmp_path: Path) -> None:
    metadata = gguf_ready(vocabulary())
    embedding = random_tensor(np.random.default_rng(1), "q8_0", (512, 32))
    tensors = {"token_embd.weight": embedding}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    load_tokenizer(open_checkpoint(path).tokenizer_source)
    refused = 0
    for name in metadata:
        for kind, other in OTHERS.items():
            write_gguf(path, metadata | {name: other}, tensors)
            try:
                checkpoint = open_checkpoint(path)
                load_tokenizer(checkpoint.tokenizer_source).encode("Once")
                checkpoint.close()
            except CheckpointError as error:
                refused += 1
                message = str(error)
                most = 1200 if "tokenizer.ggml.pre" in message else 600  # it lists ninety names
                assert message.isprintable() and len(message) < most, (name, kind)
            except Exception as error:
                raise AssertionError(f"{name} as {kind}: {error!r}") from error
    assert refused > len(metadata) * len(OTHERS) // 2
