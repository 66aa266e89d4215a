"""Weights and inputs that are not finite: no method writes other numbers for them."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from jobs import prepare, run_job

from filewriters import encode
from flyweight.config import Settings
from flyweight.describe import describe
from flyweight.errors import ConfigError
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.importance import measure_importance
from flyweight.quantize.make import make_floats
from flyweight.quantize.methods import METHODS
from flyweight.quantize.statistics import InputStatistics
from tiny_model import CONFIG, tiny_folder, tiny_tensors

WIDER = {"hidden_size": 64, "intermediate_size": 128}
UP = "model.layers.1.mlp.up_proj.weight"
WAYS = [(name, form) for name, kind in METHODS.items() for form in kind.formats]


def write_broken(path: Path, tensor: str, value: float) -> Path:
    """The tiny model with some values of one tensor replaced; a bias is added where there is
    none.
    """
    tensors = tiny_tensors({**CONFIG, **WIDER})
    if tensor.endswith(".bias"):
        for i in range(CONFIG["num_hidden_layers"]):
            for part, size in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
                name = f"model.layers.{i}.self_attn.{part}_proj.bias"
                tensors[name] = encode(np.zeros(size, np.float32), "f32")
    _, shape, raw = tensors[tensor]
    values = np.frombuffer(raw, np.float32).reshape(shape).copy()
    values[-1:, ...] = value
    tensors[tensor] = encode(values, "f32")
    config = {**WIDER, "attention_bias": tensor.endswith(".bias")}
    return tiny_folder(path, config, tensors)


@pytest.mark.parametrize(("method", "form"), WAYS)
def test_no_method_writes_nan(
    words: CalibrationText, tmp_path: Path, method: str, form: str
) -> None:
    model, out = write_broken(tmp_path / "model", UP, math.nan), tmp_path / "out"
    rows = method in ("int8-dynamic", "int8-static", "smoothquant")
    group = {} if form == "gguf" else {"group_size": -1 if rows else 32}
    bits = METHODS[method].bits[0] if form != "awq" else 4
    symmetric = False if form == "awq" else None
    job = prepare(model, words, method=method, format=form, bits=bits, symmetric=symmetric, **group)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError) as caught:
            run_job(job, out)
    assert str(caught.value) == (
        f"model = '{model}' has values that are not finite in tensor '{UP}'; "
        "flyweight check MODEL counts them"
    )
    assert not out.exists()


@pytest.mark.parametrize("method", ["rtn", "awq"])
@pytest.mark.parametrize(
    "tensor",
    [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.self_attn.v_proj.bias",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    ],
)
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_the_tensor_is_named(
    words: CalibrationText, tmp_path: Path, method: str, tensor: str, value: float
) -> None:
    model = write_broken(tmp_path / "model", tensor, value)
    with pytest.raises(ConfigError, match=f"not finite in tensor '{tensor}'"):
        run_job(prepare(model, words, method=method), tmp_path / "out")


def test_types_by_a_budget(words: CalibrationText, tmp_path: Path) -> None:
    """What no other weight reads is found when it is put in a type."""
    model = write_broken(tmp_path / "model", "model.layers.1.mlp.down_proj.weight", math.nan)
    with pytest.raises(ConfigError, match=r"not finite in tensor 'model.layers.1.mlp.down_proj"):
        prepare(model, words, method="rtn", target_size=10**6)


@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant", "int8-static"])
def test_inputs_beyond_float32(words: CalibrationText, tmp_path: Path, method: str) -> None:
    """Each weight is finite, but no sum of squares of what this norm gives."""
    norm = "model.layers.1.post_attention_layernorm.weight"
    model = write_broken(tmp_path / "model", norm, 1e30)
    group = {} if method in ("gptq", "awq") else {"group_size": -1}
    with pytest.raises(ConfigError, match=r"calibration gives inputs of layers.1.\w+ that are not"):
        run_job(prepare(model, words, method=method, **group), tmp_path / "out")


def test_importance_beyond_float32(tmp_path: Path) -> None:
    norm = "model.layers.1.post_attention_layernorm.weight"
    found = describe(write_broken(tmp_path / "model", norm, 1e30))
    ops = make_floats(Settings.of(model=str(found.checkpoint.path), threads=1), found)
    with pytest.raises(ConfigError, match=r"calibration gives inputs of layers.1.\w+ that are not"):
        measure_importance(
            found, np.arange(64, dtype=np.int32).reshape(1, 64), ops, lambda *_: None
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_statistics(value: float) -> None:
    found = InputStatistics(4)
    found.take(np.ones((3, 4), np.float32))
    found.check("x")
    found.take(np.array([[1, 1, value, 1]], np.float32))
    with pytest.raises(ConfigError, match="calibration gives inputs of x that are not finite"):
        found.check("x")
