"""Real files: stories260K as GGUF, llama2.c versions 0 and 1, and what the test helper makes of
them, bit for bit.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from convert import (
    GGUF_NAMES,
    HF_NAMES,
    half_split,
    read_model,
    read_vocabulary,
    to_folder,
    to_gguf,
    tokenizer_metadata,
)
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import Checkpoint, open_checkpoint
from flyweight.weights.gguf import read_gguf

Data = Callable[[str], Path]
SMALL = "stories260k/stories260K"
PIECES = "stories260k/tok512.bin"


def whole(checkpoint: Checkpoint, name: str) -> np.ndarray:
    found = checkpoint.read(name, 0, checkpoint.tensors[name].shape[0])
    return found.dequantize() if isinstance(found, GroupedWeight) else found


def test_gguf_equals_version_1_bit_for_bit(data: Data) -> None:
    checkpoint = open_checkpoint(data(f"{SMALL}-f32.gguf"))
    model = read_model(data(f"{SMALL}_v1.bin"))
    assert checkpoint.config["max_position_embeddings"] == 128
    assert checkpoint.config["tie_word_embeddings"] is False and checkpoint.eos_ids == (2,)
    assert np.array_equal(whole(checkpoint, "model.embed_tokens.weight"), model.embed)
    assert np.array_equal(whole(checkpoint, "lm_head.weight"), model.embed)
    assert np.array_equal(whole(checkpoint, "model.norm.weight"), model.norm)
    for short, name in HF_NAMES.items():
        for i in range(5):
            found = whole(checkpoint, f"model.layers.{i}.{name}.weight")
            assert np.array_equal(found, model.layers[short][i]), (short, i)
    assert len(checkpoint.tensors) == 3 + 5 * len(HF_NAMES)


def test_gguf_tokenizer_equals_the_tokenizer_file(data: Data) -> None:
    metadata = read_gguf(data(f"{SMALL}-f32.gguf")).metadata
    for key, value in tokenizer_metadata(read_vocabulary(data(PIECES), 512)).items():
        assert np.array_equal(metadata[key], value), key  # type: ignore[arg-type]


def test_versions_0_and_1_hold_the_same_model(data: Data) -> None:
    old, new = read_model(data(f"{SMALL}.bin")), read_model(data(f"{SMALL}_v1.bin"))
    assert old.shape == new.shape and np.array_equal(old.embed, new.embed)
    assert all(np.array_equal(old.layers[k], new.layers[k]) for k in old.layers)


@pytest.mark.parametrize("shards", [1, 3])
def test_folder_holds_the_rows_in_half_split_order(shards: int, data: Data, tmp_path: Path) -> None:
    source = data(f"{SMALL}_v1.bin")
    checkpoint = open_checkpoint(to_folder(source, data(PIECES), tmp_path, shards=shards))
    model = read_model(source)
    q = whole(checkpoint, "model.layers.3.self_attn.q_proj.weight")
    assert np.array_equal(q, half_split(model.layers["q"][3], 8))
    assert np.array_equal(
        whole(checkpoint, "model.layers.3.self_attn.v_proj.weight"), model.layers["v"][3]
    )
    assert checkpoint.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in checkpoint.tensors


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_gguf_made_of_the_int8_model(kind: str, data: Data, tmp_path: Path) -> None:
    source = data("stories3m/stories3M-q80.bin")
    path = to_gguf(source, data("stories3m/tok4096.bin"), tmp_path / "m.gguf", kind)
    checkpoint, model = open_checkpoint(path), read_model(source)
    for short in GGUF_NAMES:
        name = f"model.layers.2.{HF_NAMES[short]}.weight"
        expected = model.layers[short][2]
        found = whole(checkpoint, name)
        if kind == "f32" or expected.ndim == 1:
            assert np.array_equal(found, expected)
        else:
            assert checkpoint.tensors[name].kind == "q8_0"
            limit = np.abs(expected).max() / 127 * 0.52  # half a step, and the scale's rounding
            assert np.abs(found - expected).max() <= limit


def test_folder_tokenizer_spells_the_published_ids(data: Data, tmp_path: Path) -> None:
    to_folder(data(f"{SMALL}.bin"), data(PIECES), tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = tokenizer.encode("Once upon a time")
    assert found.ids == [1, 403, 407, 261, 378]
    assert tokenizer.decode(found.ids) == "Once upon a time"
    text = "A caf\u00e9\n\u4e2d\u6587!"  # bytes where there is no piece
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["bos_token"] == "<s>"


def test_vocabulary_files_of_many_models_read(data: Data) -> None:
    folder = data("tokenizers-ggml-vocab")
    paths = sorted(folder.glob("*.gguf"))
    assert paths
    for path in paths:
        metadata = read_gguf(path).metadata
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        assert all(isinstance(token, str) for token in tokens) and isinstance(types, np.ndarray)
        assert len(tokens) == len(types) > 1000
