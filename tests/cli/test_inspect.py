"""`flyweight inspect`: the facts, in tables that fit the terminal and as JSON."""

import json
import shutil
from pathlib import Path

import pytest

from tiny_model import VOCABULARY

MODELS = Path(__file__).parents[1] / "data" / "models"


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


def test_what_sets_a_family_apart_is_told(command, tmp_path) -> None:
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
