"""A model published as facebook/opt-125m is, in PyTorch's files alone: names without "model.", a
head that shares the embedding's storage; here in two files with an index.
"""

from pathlib import Path

import numpy as np
from harness import MODELS, decoder, logits

from filewriters import encode
from flyweight.ops.base import Ops
from flyweight.weights.checkpoint import open_checkpoint
from torchwriter import torch_folder


def test_the_logits_are_those_of_the_safetensors(native: Ops, tmp_path: Path) -> None:
    source = open_checkpoint(MODELS / "opt-odd")
    tensors = {
        name.removeprefix("model."): encode(source.read(name, 0, info.shape[0]), "f16")  # type: ignore[arg-type]
        for name, info in source.tensors.items()
    }
    config = (MODELS / "opt-odd" / "config.json").read_text()
    tensors["decoder.version"] = encode(np.array([3.0]), "f32")  # fairseq's, in older files
    tied = {"lm_head.weight": "decoder.embed_tokens.weight"}
    folder = torch_folder(tmp_path / "model", config, tensors, tied)
    assert set(open_checkpoint(folder).tensors) == {*tensors, *tied}
    expected = np.load(MODELS / "opt-odd" / "expected.npz")
    prompt, rows = expected["prompt"], expected["rows"]
    want, got = (
        logits(decoder(path, native), prompt, rows) for path in (MODELS / "opt-odd", folder)
    )
    assert np.array_equal(got, want)
    assert np.abs(got - expected["logits"]).max() < 1e-3
