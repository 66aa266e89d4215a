"""The fuzz targets (fuzz/) start from inputs that are right; what they found stays found."""

import importlib
import warnings
from pathlib import Path

import numpy as np
import pytest

from filewriters import encode, write_gguf
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.models.rope import read_rope_spec
from flyweight.text.tokenizer import load_tokenizer
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats import FORMATS

FUZZ = Path(__file__).parents[2] / "fuzz"


@pytest.mark.parametrize(
    "name",
    [
        "gguf", "safetensors", "quantized", "torch", "tokenizer", "template", "answers", "schemas",
    ],
)  # fmt: skip
def test_every_seed_is_accepted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FUZZ)
    target = importlib.import_module(f"fuzz_{name}").Target(tmp_path)
    seeds = list(target.seeds())
    assert len(seeds) >= 6
    assert [seed[:200] for seed in seeds if not target.execute(seed)] == []
    assert not target.execute(b"{{")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("half", [0x7C01, 0xFFFF, 0x7C00], ids=hex)  # NaNs of both sorts, infinity
def test_blocks_of_any_bits_are_parsed_in_silence(kind: str, half: int) -> None:
    form = FORMATS[kind]
    raw = np.full(form.count_bytes((2, 256)) // 2, half, np.uint16).view(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert form.parse(raw, (2, 256)).shape == (2, 256)


def test_a_score_that_is_a_signalling_nan_is_refused_in_silence() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.scores": np.array([0, 0x7F800001], np.uint32).view(np.float32),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CheckpointError, match="not finite"):
            load_tokenizer(metadata)


def test_rope_factors_so_small_that_no_frequency_is_left_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CheckpointError, match="frequencies that are not finite"):
            read_rope_spec({"rope_scaling": {"rope_type": "factors", "factors": [1, 1e-45]}}, 4)


def test_rope_factors_that_overflow_are_refused_in_silence(tmp_path: Path) -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 4,
        "llama.block_count": 1,
        "llama.attention.head_count": 1,
        "llama.feed_forward_length": 4,
        "llama.context_length": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": 4,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 1e9,
    }
    factors = encode(np.array([1, 3e38], np.float32), "f32")
    path = write_gguf(tmp_path / "m.gguf", metadata, {"rope_freqs.weight": factors})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = open_checkpoint(path).config
        with pytest.raises(CheckpointError, match="factors = Infinity"):
            find_family(config).read_spec(config)
