"""Models that see pictures are read for their text."""

from pathlib import Path

import numpy as np
from harness import MODELS, decoder, logits

from filewriters import encode, write_folder
from flyweight.ops.base import Ops, from_bf16_bits
from flyweight.weights.checkpoint import open_checkpoint


def test_the_text_part_of_a_model_that_sees_is_read(native: Ops, tmp_path: Path) -> None:
    """Gemma 3 from 4B on: one checkpoint with a vision tower, under two ways of naming."""
    source = open_checkpoint(MODELS / "gemma3")
    for i, prefix in enumerate(("language_model.model.", "model.language_model.")):
        tensors = {"vision_tower.encoder.weight": encode(np.ones((4, 4)), "f32")}
        for key, info in source.tensors.items():
            values = from_bf16_bits(source.read(key, 0, info.shape[0]))  # type: ignore[arg-type]
            tensors[prefix + key.removeprefix("model.")] = encode(values, "bf16")
        config = {"model_type": "gemma3", "text_config": source.config, "vision_config": {}}
        folder = write_folder(tmp_path / str(i), config, tensors)
        expected = np.load(MODELS / "gemma3" / "expected.npz")
        got = logits(decoder(folder, native), expected["prompt"], expected["rows"])
        assert np.abs(got - expected["logits"]).max() < 1e-3


def test_the_text_part_of_llama4_is_read(native: Ops, tmp_path: Path) -> None:
    """As published: every name of the text model behind `language_model.`, its head too."""
    source = open_checkpoint(MODELS / "llama4")
    tensors = {
        "vision_model.patch_embedding.linear.weight": encode(np.ones((4, 4)), "f32"),
        "multi_modal_projector.linear_1.weight": encode(np.ones((4, 4)), "f32"),
    }
    for key, info in source.tensors.items():
        rows = int(np.prod(info.shape[:-1])) if len(info.shape) > 1 else info.shape[0]
        values = from_bf16_bits(source.read(key, 0, rows))  # type: ignore[arg-type]
        tensors[f"language_model.{key}"] = encode(values.reshape(info.shape), "bf16")
    config = {"model_type": "llama4", "text_config": source.config, "vision_config": {}}
    folder = write_folder(tmp_path, config, tensors)
    expected = np.load(MODELS / "llama4" / "expected.npz")
    got = logits(decoder(folder, native), expected["prompt"], expected["rows"])
    assert np.abs(got - expected["logits"]).max() < 1e-3
