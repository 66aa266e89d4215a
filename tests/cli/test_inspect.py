"""`flyweight inspect`: the facts, in tables that fit the terminal and as JSON."""

import json
import shutil
from pathlib import Path

import pytest

from tiny_model import VOCABULARY

MODELS = Path(__file__).parents[1] / "data" / "models"
QUANTIZED = MODELS.with_name("models-quantized")


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(command, folder, columns, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for model in (folder, "stories"):
        got = command("inspect", model)
        assert got.code == 0 and not got.err
        assert max(map(len, got.out.splitlines())) <= columns
        for words in ("Weight plan", "Memory plan", "K/V", "gate_proj up_proj", "planned peak"):
            assert words in got.out


def test_json_says_all_of_it(command, folder) -> None:
    got = json.loads(command("inspect", folder, "--json").out)
    assert got["spec"]["family"] == "llama" and len(got["spec"]["layers"]) == 2
    assert got["weights"]["layers.1.qkv"] == {
        "shape": [64, 32],
        "kinds": ["f32"],
        "sources": [f"model.layers.1.self_attn.{x}_proj.weight" for x in "qkv"],
    }
    parts = [n for name, n in got["memory"].items() if name not in ("need", "limit")]
    assert sum(parts) == got["memory"]["need"] <= got["memory"]["limit"]
    assert (got["max_model_len"], got["stop_ids"], got["chat_template"]) == (256, [481], False)


def test_inspecting_reads_no_weights(command, folder, monkeypatch) -> None:
    def refuse(*_) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("flyweight.weights.mapped.MappedFile.read_rows", refuse)
    assert command("inspect", folder).code == 0


def test_what_does_not_fit_is_refused(command, folder) -> None:
    got = command("inspect", folder, "--memory-limit", "10MB")
    assert got.code == 2 and "nearest settings that fit: memory_limit = " in got.err


def test_features_of_a_family_are_reported(command, tmp_path) -> None:
    """Experts and heads share a row of the plan; windows and latents are said."""
    for name, words in {
        "gpt-oss": ("5 of inner 64, 2 a token, in 3 layers", "2 layers see 41 positions"),
        "deepseek-v2": ("8 of inner 40, 4 a token, 40 shared", "latents of 40"),
        "gpt2": ("learned positions", "ln_1.bias"),
    }.items():
        folder = shutil.copytree(MODELS / name, tmp_path / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(VOCABULARY / file, folder)
        shown = command("inspect", folder).out
        assert all(word in shown for word in words), shown
        assert len(shown.splitlines()) < 60


def test_a_model_without_tokenizer_is_looked_at(command) -> None:
    """And how many of its matrices no kernel reads."""
    got = command("inspect", QUANTIZED / "hqq-columns")
    assert got.code == 0 and "none in the folder; `run` and `serve` require one" in got.out
    words = " ".join(got.out.split())
    assert "hqq: BF16; no kernel reads the codes of 7 matrices, which are kept as bf16" in words
    assert json.loads(command("inspect", QUANTIZED / "gptq-4", "--json").out)["tokenizer"] is False


def test_the_files_must_have_the_requested_method(command) -> None:
    folder = QUANTIZED / "gptq-4"
    assert command("inspect", folder, "-q", "GPTQ").code == 0
    got = command("inspect", folder, "--quantization", '{"method": "gptq", "bits": 8}')
    assert got.code == 2 and "has bits = 8, and gptq-4 has 4; leave it out" in got.err
    got = command("run", folder, "-q", "awq", "hello")
    assert got.code == 2 and "quantization = 'awq', and gptq-4 is quantised as gptq" in got.err
