"""Outlines of models: from config.json alone they are those of the files."""

import json
from pathlib import Path

import pytest

from flyweight.config import Settings
from flyweight.describe import SilentListener
from flyweight.errors import CheckpointError
from flyweight.planning.outline import ModelOutline, assume_bits, outline_model

MODELS = Path(__file__).parents[1] / "data" / "models"


def read(path: Path) -> ModelOutline:
    return outline_model(Settings(model=str(path)), SilentListener())


def write_config(folder: Path, config: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "family", ["llama3", "deepseek-v3", "mixtral", "gpt2", "gemma3", "llama4", "phi4-multimodal"]
)
def test_a_config_alone_gives_the_shapes_of_the_files(family: str, tmp_path: Path) -> None:
    config = json.loads((MODELS / family / "config.json").read_text(encoding="utf-8"))
    alone, files = read(write_config(tmp_path, config)), read(MODELS / family)
    assert alone.params == files.params and alone.spec == files.spec


def test_parameters_of_a_tiny_model(outline: ModelOutline) -> None:
    embedding = 483 * 32
    layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 64 * 32 + 2 * 32  # q, k and v, out, MLP, norms
    assert outline.params == embedding + 2 * layer + 32


@pytest.mark.parametrize(
    ("quantised", "kind"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "u4_g32"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "u4_g32"),
        ({"quant_method": "fp8"}, "e4m3_rows"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
    ],
)
def test_quantised_configs(
    quantised: dict[str, object], kind: str, outline: ModelOutline, tmp_path: Path
) -> None:
    config = json.loads((MODELS / "llama3" / "config.json").read_text(encoding="utf-8"))
    found = read(write_config(tmp_path, {**config, "quantization_config": quantised}))
    assert found.kinds["layers.0.out"][0][1] == kind
    assert (found.kinds["embed"][0][1], found.kinds["norm"][0][1]) == ("bf16", "f32")


def test_bits_fall_back_to_blocks_that_fit_the_rows(outline: ModelOutline) -> None:
    kinds = assume_bits(outline, 4)  # rows of 32 and 64: no whole blocks of 256
    assert {kinds["embed"][0][1], kinds["layers.1.down"][0][1]} == {"q4_0"}
    assert kinds["norm"][0][1] == "f32"


def test_a_model_that_is_not_supported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="model_type = 'mamba'"):
        read(write_config(tmp_path, {"model_type": "mamba"}))
