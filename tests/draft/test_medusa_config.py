"""`speculative_config` with Medusa heads: read, refused before loading, and used by `LLM`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from filewriters import encode, write_safetensors
from flyweight import LLM, SamplingParams
from flyweight import build as building
from flyweight.errors import FlyweightError

HIDDEN, VOCAB = 192, 2048  # of the model inside


def write(path: Path, heads: int = 2, hidden: int = HIDDEN, **config: Any) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    zeros = encode(np.zeros((hidden, hidden), np.float32), "f32")
    tensors = {f"blocks.{i}.layers.0.weight": zeros for i in range(heads)}
    write_safetensors(path / "model.safetensors", tensors)
    return str(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("stray", np.float32(1).reshape(()), "tensor 'stray' is none of Medusa heads'"),
        ("stray", np.ones((2, 3), np.int32), "tensor 'stray' is none of Medusa heads'"),
        ("blocks.0.layers.0.bias", np.ones(HIDDEN, np.int32), "is i32; known: f32, f16, bf16"),
        ("blocks.0.layers.0.bias", np.ones(2, np.float32), r"is \[2\], this model needs \[192\]"),
    ],
)
def test_strays_and_kinds_are_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, message: str
) -> None:
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    path = Path(write(tmp_path / "h"))
    zeros = np.zeros((HIDDEN, HIDDEN), np.float32)
    tensors = {f"blocks.{i}.layers.0.weight": encode(zeros, "f32") for i in range(2)}
    kind = "i32" if value.dtype == np.int32 else "f32"
    raw = tensors | {name: (kind, value.shape, value.tobytes())}
    write_safetensors(path / "model.safetensors", raw)
    with pytest.raises(FlyweightError, match=message) as refused:
        LLM(max_model_len=64, speculative_config=config(str(path)))
    assert "\n" not in str(refused.value)


def config(model: str, tokens: int = 2) -> dict[str, Any]:
    return {"method": "medusa", "model": model, "num_speculative_tokens": tokens, "adaptive": False}


def test_heads_are_used_and_change_nothing(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    prompts = ["Once upon a time", "The little dog was very, very, very"]
    plain = LLM(max_model_len=64).generate(prompts, params, use_tqdm=False)
    drafted = LLM(max_model_len=64, speculative_config=config(write(tmp_path / "h")))
    found = drafted.generate(prompts, params, use_tqdm=False)
    assert [x.outputs[0].token_ids for x in found] == [x.outputs[0].token_ids for x in plain]
    assert drafted.loaded.engine.metrics.proposed > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 96}, r"blocks\.0\.layers\.0\.weight.* is \[96, 96\], .* needs \[192, 192\]"),
        ({"vocab_size": 2047}, "vocab_size = 2047, this model has 2048"),
        ({"base_fingerprint": "0" * 32}, "base_fingerprint .* train heads for it"),
        ({"heads": 1}, "num_speculative_tokens.*2.* 1 heads"),
    ],
)
def test_other_heads_are_refused_before_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(building, "load_weights", None)  # calling it would raise
    with pytest.raises(FlyweightError, match=message) as refused:
        LLM(max_model_len=64, speculative_config=config(write(tmp_path / "h", **change)))
    assert "\n" not in str(refused.value)


def test_what_is_no_folder_is_refused() -> None:
    with pytest.raises(FlyweightError, match=r"speculative_config\.model.*nowhere"):
        LLM(max_model_len=64, speculative_config=config("nowhere"))
    with pytest.raises(FlyweightError, match=r"speculative_config\.model.*missing"):
        LLM(speculative_config={"method": "medusa", "num_speculative_tokens": 2})
