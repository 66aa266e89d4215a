"""`flyweight eval stamp`, what shows a passport, and `--max-kld`."""

import json
import re
import shutil
from pathlib import Path

import pytest

from flyweight import LLM
from flyweight.describe import ASSETS
from flyweight.errors import ConfigError
from flyweight.passport import FILE
from passports import stamp
from tiny_model import tiny_folder, tiny_tensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(ASSETS / "stories-draft.gguf", tmp_path / "draft.gguf"))


@pytest.fixture
def words(tmp_path: Path) -> tuple[object, ...]:
    file = tmp_path / "words.txt"
    file.write_text("a small bird sat in the old tree and sang. " * 40, encoding="utf-8")
    return ("--text", file, "--context", 64, "--limit-tokens", 200)


def test_the_file_reports_what_was_measured(command, model, words) -> None:
    full = ASSETS / "stories.gguf"
    got = command("eval", "kld", model, "--against", full, *words, "--json")
    expected = json.loads(got.out)
    shown = command("eval", "stamp", model, "--against", full, *words, "--kv-cache-types", "fp8")
    assert shown.code == 0 and f"written to {model}" in shown.out.replace("\n", ""), shown.err
    quality = json.loads(command("inspect", model, "--json").out)["quality"]
    names = [name for name in expected if name.startswith(("kld", "top1", "perplexity"))]
    assert len(names) == 10
    assert {n: quality[n] for n in names} == pytest.approx({n: expected[n] for n in names})
    assert quality["text_sha256"] == expected["text_sha256"] and quality["tokens"] == 200
    assert quality["command"] == (
        "flyweight eval stamp draft.gguf --against stories.gguf --text words.txt --context 64 "
        "--limit-tokens 200 --activations int8 --kv-cache-types fp8_e4m3"
    )
    assert quality["bits"] == pytest.approx(8.5, abs=0.1) and quality["recipe"] == "q8_0 f32"
    said = command("inspect", model).out
    assert "Quality passport" in said and f"{expected['kld_mean']:.6f}" in said
    more = command("eval", "stamp", model, *words, "--kv-cache-types", "int4", "--json")
    assert more.code == 0, more.err
    found = json.loads(more.out)
    assert sorted(found["kv_cache"]) == ["fp8_e4m3", "int4"]
    assert found["kv_cache"]["fp8_e4m3"] == quality["kv_cache"]["fp8_e4m3"]
    assert found["kld_mean"] == quality["kld_mean"] and found["path"] == str(model)
    same = command("eval", "--stamp", model, *words, "--kv-cache-types", "int4", "--json")
    assert json.loads(same.out)["command"] == found["command"]
    other = command(
        "eval", "stamp", model, *words, "--kv-cache-types", "int4", "--activations", "f32"
    )
    assert other.code == 2 and "nearest valid: int8" in other.err


def test_a_folder(command, words, tmp_path) -> None:
    folder = tiny_folder(tmp_path / "model")
    shown = command("eval", "stamp", folder, "--against", folder, *words)
    assert shown.code == 0, shown.err
    found = json.loads((folder / FILE).read_text())
    assert found["kld_mean"] < 1e-4 and found["against"] == "model" and found["bits"] == 32
    assert command("run", folder, "a", "--max-kld", "0.01", "--max-tokens", 1).code == 0
    tiny_folder(folder, None, tiny_tensors(seed=3))
    got = command("run", folder, "a", "--max-kld", "0.01", "--max-tokens", 1)
    assert got.code == 2 and "the passport is of other weights" in got.err
    assert "of other weights" in command("inspect", folder).out


@pytest.mark.usefixtures("short_text")
def test_a_format_is_not_taken_for_the_method(command, words, tmp_path) -> None:
    """GPTQ's format holds weights that were rounded to nearest; only their maker knows."""
    full, out = tiny_folder(tmp_path / "full"), tmp_path / "out"
    more = ("--method", "rtn", "--format", "gptq", "--group-size", 32, "--memory-limit", "8GiB")
    assert command("quantize", full, out, *more, "--eval-tokens", 0).code == 0
    shown = command("eval", "stamp", out, "--against", full, *words)
    assert shown.code == 0, shown.err
    found = json.loads((out / FILE).read_text())
    assert "method" not in found and found["file_format"] == "gptq"
    said = command("inspect", out).out
    assert re.search(r"made as +\d+\.\d\d bits a weight", said), said
    assert re.search(r"format +gptq", said), said
    made = command("quantize", full, tmp_path / "made", *more, "--eval-tokens", 600)
    assert made.code == 0, made.err
    found = json.loads((tmp_path / "made" / FILE).read_text())
    assert (found["method"], found["file_format"]) == ("rtn", "gptq")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "against is needed"),
        (("--prompts", "p.jsonl"), "against is needed"),
        (("--kv-cache-types", "int4"), "against is needed: this model has no passport"),
        (("--against", "stories", "--kv-cache-types", "int7"), "kv_types = 'int7' is no type"),
        (("--against", "stories", "--prompts", "nowhere"), "nowhere: No such file"),
        (("--against", "stories", "--long-context", 3), "long_context = 3 is too short"),
    ],
)
def test_stamps_that_are_refused(command, model, words, more, said) -> None:
    before = model.read_bytes()
    shown = command("eval", "stamp", model, *words, *more)
    assert shown.code == 2 and shown.out == ""
    assert said in shown.err.splitlines()[-1] and model.read_bytes() == before


def test_the_command_names_the_file_of_prompts(command, model, words, tmp_path) -> None:
    prompts = tmp_path / "my prompts.jsonl"
    prompts.write_text('{"prompt": "A user: ", "schema": {"type": "object"}}')
    more = ("--prompts", prompts, "--long-context", 0, "--json")
    got = command("eval", "stamp", model, "--against", model, *words, *more)
    assert got.code == 0, got.err
    assert json.loads(got.out)["command"].endswith(" --prompts 'my prompts.jsonl'")


def test_what_cannot_be_written_is_refused_first(command, model, words, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("cannot be written: Permission denied", "model")

    monkeypatch.setattr("flyweight.weights.passports.check_place", refuse)
    monkeypatch.setattr("flyweight.eval.session.EvalSession.score", None)
    shown = command("eval", "stamp", model, "--against", model, *words)
    assert shown.code == 2 and "Permission denied" in shown.err


@pytest.mark.parametrize("start", [("run",), ("serve", "--port", 0)])
def test_a_model_above_the_limit_is_not_loaded(command, process, model, start, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a tensor was read")

    if start[0] == "run":
        monkeypatch.setattr("flyweight.weights.ggufmodel.GgufParts.read_rows", refuse)
        monkeypatch.setattr("flyweight.weights.ggufmodel.GgufParts.read_blocks", refuse)
    call = command if start[0] == "run" else process
    words = (start[0], model, *(("a",) if start[0] == "run" else start[1:]))
    got = call(*words, "--max-kld", 0.01)
    assert got.code == 2 and got.err.splitlines()[-1] == (
        f"error: max_kld = 0.01 cannot be checked: {model} has no passport; "
        f"flyweight eval stamp {model} --against FULL measures it"
    )
    stamp(model, kld_mean=0.02)
    got = call(*words, "--max-kld", 0.01)
    assert got.code == 2 and got.err.splitlines()[-1] == (
        f"error: max_kld = 0.01 is below the mean KLD of {model}, 0.02; nearest valid: 0.02"
    )


def test_a_model_below_the_limit(command, model) -> None:
    stamp(model, kld_mean=0.02)
    words = ("run", model, "Once", "--max-tokens", 2, "--max-kld", 0.02)
    assert command(*words).code == 0
    assert command(*words, "--kv-cache-dtype", "int8").code == 0
    got = command(*words, "--kv-cache-dtype", "fp8")
    assert got.code == 2 and "no figure for kv_cache_dtype = fp8_e4m3" in got.err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "much"])
def test_limits_that_are_none(command, value) -> None:
    got = command("run", "stories", "a", f"--max-kld={value}")
    assert got.code == 2 and "max" in got.err and "kld" in got.err


def test_the_keyword_of_python(model) -> None:
    with pytest.raises(ConfigError, match=r"max_kld = 0.01 cannot be checked: .* no passport"):
        LLM(str(model), max_kld=0.01)
    made = stamp(model, kld_mean=0.01)
    with LLM(str(model), max_kld=0.01) as llm:
        assert llm.loaded.quality.passport == made
