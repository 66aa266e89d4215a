"""Errors for architectures that are not supported: the reason, and no hint from a similar name."""

from pathlib import Path

import pytest

from filewriters import gguf_bytes, key
from flyweight.errors import CheckpointError
from flyweight.models.registry import FAMILIES, find_family
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.gguf_names import ARCHITECTURES

STATE = "its recurrent layers need state slots, not built yet"
RECURRENT = (
    "mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba2", "rwkv", "rwkv5",
    "nemotron_h", "granitemoehybrid", "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text",
    "kimi_linear", "lfm2", "lfm2_moe", "recurrent_gemma", "plamo2", "minimax", "xlstm",
)  # fmt: skip
RECURRENT_GGUF = (
    "mamba", "mamba2", "jamba", "falcon-h1", "rwkv6", "rwkv7", "arwkv7", "rwkv6qwen2",
    "nemotron_h", "nemotron_h_moe", "granitehybrid", "qwen3next", "qwen35", "qwen35moe",
    "kimi-linear", "lfm2", "lfm2moe", "plamo2",
)  # fmt: skip
OTHERS = ("mllama", "gpt_neo", "gptj", "qwen4", "gemma9", "phi", "bloom", "lama", "minimax_m2")


def refusal(model_type: str) -> str:
    with pytest.raises(CheckpointError) as error:
        find_family({"model_type": model_type})
    return str(error.value)


def gguf_refusal(name: str, path: Path) -> str:
    path.write_bytes(gguf_bytes([key("general.architecture", name)], []))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    return str(error.value)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_the_reason(name: str) -> None:
    assert refusal(name).startswith(f"model_type = '{name}' is not supported; {STATE}; known: ")


@pytest.mark.parametrize("name", RECURRENT_GGUF)
def test_the_same_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    assert f"general.architecture = '{name}' is not supported; {STATE}; known: " in gguf_refusal(
        name, tmp_path / "m.gguf"
    )


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_that_only_sounds_alike_gives_no_hint(name: str, tmp_path: Path) -> None:
    known, of_files = ", ".join(FAMILIES), ", ".join(ARCHITECTURES)
    assert refusal(name) == f"model_type = '{name}' is not supported; known: {known}"
    said = gguf_refusal(name, tmp_path / "m.gguf")
    assert said.endswith(f"general.architecture = '{name}' is not supported; known: {of_files}")


@pytest.mark.parametrize("name", ["aquila", "xverse"])
def test_a_family_with_the_same_files_is_named(name: str) -> None:
    assert "; its files are those of 'llama': say so in config.json; known: " in refusal(name)


@pytest.mark.parametrize("name", ["bert", "nomic_bert", "xlm-roberta", "modernbert"])
def test_encoders_are_out_of_scope(name: str) -> None:
    assert "; encoders (BERT, Nomic and the like) are out of scope; known: " in refusal(name)


def test_no_family_we_run_is_refused() -> None:
    from flyweight.weights.refused import explain

    assert [name for name in (*FAMILIES, *ARCHITECTURES) if explain(name)] == []
