"""`quantize_model` and `flyweight quantize`: a model, its passport, and dicts of other tools."""

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import WORDS

from flyweight import ConfigError, quantize_model
from flyweight.cli.main import main
from flyweight.quantization import Evaluation

FEW = Evaluation(tokens=600, engine={"memory_limit": "8GiB", "threads": 1})
TEXTS: list[Any] = [f"{i}: {WORDS}" for i in range(40)]


def test_a_dict_of_autoawq(full: Path, tmp_path: Path) -> None:
    out = tmp_path / "awq"
    config = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    done = quantize_model(
        str(full), out, method="awq", quant_config=config, calib_data=TEXTS, length=64,
        evaluation=FEW,
    )  # fmt: skip
    written = json.loads((out / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == "awq" and written["group_size"] == 32
    assert done.path == out and done.passport is not None
    assert done.passport.kld_mean > 0 and done.passport.method == "awq"
    assert "--group-size 32" in done.passport.command
    kept = json.loads((out / "flyweight_passport.json").read_text())
    assert kept["kld_mean"] == done.passport.kld_mean


def test_options_must_not_contradict_the_dict(full: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bits = 8 contradicts bits = 4 of the config"):
        quantize_model(str(full), tmp_path / "out", bits=8, quant_config={"w_bit": 4})


def test_a_model_whose_quality_cannot_be_measured_is_kept(full: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short")
    done = quantize_model(
        str(full), tmp_path / "out", group_size=32, evaluation=Evaluation(text=str(text))
    )
    assert done.passport is None and (tmp_path / "out/config.json").is_file()
    assert "fewer than context" in done.problem and "flyweight eval stamp" in done.problem


SEED = {"type": "int4", "method": "GPTQ", "groupSize": 32, "actOrder": True}


def test_the_command(full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, text, out = tmp_path / "seed.json", tmp_path / "text.jsonl", tmp_path / "out"
    config.write_text(json.dumps({"quantization": SEED}))
    text.write_text("\n".join(map(json.dumps, TEXTS)))
    words = ["quantize", str(full), str(out), "--config", str(config), "--calibration", str(text)]
    words += ["--samples", "4", "--length", "64", "--threads", "1", "--memory-limit", "8GiB"]
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "int4 g32 by gptq" in shown and "Memory:" in shown and not out.exists()
    assert main([*words, "--eval-text", str(full / "config.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["method"] == "gptq" and document["format"] == "gptq"
    assert json.loads((out / "config.json").read_text())["quantization_config"]["desc_act"]
    assert main([*words, "--eval-tokens", "0"]) == 2
    assert "exists already; remove it" in capsys.readouterr().err


def test_the_founding_json_is_refused_as_printed(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "seed.json"
    config.write_text(json.dumps({"quantization": {**SEED, "desc_act": False}}))
    assert main(["quantize", str(full), str(tmp_path / "out"), "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "desc_act = false contradicts actOrder = true" in error
