"""`flyweight inspect`: the facts, in tables that fit the terminal and as JSON."""

import json

import pytest


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

    monkeypatch.setattr("flyweight.weights.mapped.MappedFile.rows", refuse)
    assert command("inspect", folder).code == 0


def test_what_does_not_fit_is_refused(command, folder) -> None:
    got = command("inspect", folder, "--memory-limit", "10MB")
    assert got.code == 2 and "nearest settings that fit: memory_limit = " in got.err
