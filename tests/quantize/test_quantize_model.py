"""`quantize_model` and `flyweight quantize`: a model, its passport, and dicts of other tools."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import WORDS

from flyweight import ConfigError, quantize_model
from flyweight.cli.main import main
from flyweight.describe import describe
from flyweight.passport import Passport
from flyweight.quantization import Evaluation

pytestmark = pytest.mark.usefixtures("short_text")
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
    assert done.passport.command == (
        f"flyweight quantize {full.name} awq --method awq --bits 4 --group-size 32 --asym "
        "--length 64 --calibration FILE --eval-tokens 600"
    )
    kept = json.loads((out / "flyweight_passport.json").read_text())
    assert kept["kld_mean"] == done.passport.kld_mean


def test_options_must_not_contradict_the_dict(full: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bits = 8 contradicts bits = 4 of the config"):
        quantize_model(str(full), tmp_path / "out", bits=8, quant_config={"w_bit": 4})


def test_a_dict_of_autoawq_names_its_method(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "awq.json"
    given = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    config.write_text(json.dumps(given))
    words = ["quantize", str(full), str(tmp_path / "out"), "--config", str(config), "--json"]
    assert main([*words, "--dry-run"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["method"], document["format"]) == ("awq", "awq")
    assert main([*words, "--dry-run", "--method", "rtn"]) == 2
    assert "method = 'rtn' contradicts method = awq of the config" in capsys.readouterr().err
    config.write_text(json.dumps(given | {"w_bit": 5}))
    assert main([*words, "--dry-run"]) == 2
    assert "bits = 5 is not supported by method awq; allowed: 2, 3, 4, 8" in capsys.readouterr().err


def test_a_model_whose_quality_cannot_be_measured_is_kept(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWEIGHT_DATA", str(tmp_path))  # which lacks the usual text
    done = quantize_model(str(full), tmp_path / "out", group_size=32)
    assert done.passport is None and (tmp_path / "out/config.json").is_file()
    assert "No such file" in done.problem and "flyweight eval stamp" in done.problem


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("", (), r" has 0 tokens; at least \d+ are needed; give a longer text"),
        ("too short", (), r" has [1-9]\d* tokens; at least \d+ are needed"),
        (WORDS * 40, ("--eval-tokens", "2"), r"eval_tokens = 2 is less than a window"),
    ],
)
def test_texts_that_are_too_short_are_refused_before_the_model_is_made(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text, more, said
) -> None:
    file = tmp_path / "empty.txt"
    file.write_text(text)
    words = ["quantize", str(full), str(tmp_path / "out"), "--group-size", "32"]
    assert main([*words, "--eval-text", str(file), *more]) == 2
    shown = capsys.readouterr()
    assert re.search(said, shown.err) and shown.err.count("\n") == 1 and shown.out == ""
    assert list(tmp_path.iterdir()) == [file]


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


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("q4.gguf", ("--type", "Q4_K_M", "--calibration", "my text.txt")),
        ("q8", ("--method", "int8-w8a8")),
        ("g4", ("--method", "gptq", "--group-size", "32", "--calibration", "my text.txt")),
    ],
)
def test_the_command_of_a_passport_makes_the_same_model(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: tuple[str, ...]
) -> None:
    (tmp_path / "my text.txt").write_text("\n".join(map(str, TEXTS)))
    (tmp_path / full.name).symlink_to(full)
    monkeypatch.chdir(tmp_path)
    small = ["--samples", "4", "--length", "64", "--eval-tokens", "600"]
    engine = ["--threads", "1", "--memory-limit", "8GiB"]
    assert main(["quantize", full.name, name, *more, *small, *engine]) == 0
    first = read_passport(tmp_path / name)
    (tmp_path / name).rename(tmp_path / "first")
    program, *words = shlex.split(first.command)
    assert program == "flyweight"
    assert main([*words, *engine]) == 0
    again = read_passport(tmp_path / name)
    assert replace(again, date=first.date) == first, "but for the day"
    assert first.method != "int8-w8a8" and first.bits and first.requantized_from == ""


def read_passport(path: Path) -> Passport:
    found = describe(path)
    found.checkpoint.close()
    assert found.quality.passport is not None
    return found.quality.passport


def test_a_requantised_model_says_from_what(full: Path, tmp_path: Path) -> None:
    q8 = quantize_model(str(full), tmp_path / "q8.gguf", type="Q8_0", evaluation=FEW).path
    done = quantize_model(
        str(q8), tmp_path / "q4.gguf", type="Q4_0", requantize=True, evaluation=FEW
    )
    assert done.passport is not None
    assert done.passport.requantized_from == "rtn (q8_0)"
    assert "--requantize" in done.passport.command
