"""GGUF files of `flyweight quantize`: from a folder and from a GGUF file, types, metadata."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from jobs import measure_gram, prepare, run_job

from flyweight import LLM, ConfigError, SamplingParams, quantize_model
from flyweight.describe import ASSETS, describe
from flyweight.passport import KEY
from flyweight.quantization import Evaluation
from flyweight.quantize.calibration import CalibrationText
from flyweight.weights.load import read_matrix
from tiny_model import tiny_folder

EXACT: dict[str, Any] = {
    "activations": "f32", "kv_cache_dtype": "f32", "memory_limit": "8GiB", "threads": 1,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=3)


def write(full: Path, out: Path, words: CalibrationText, **options: Any) -> Path:
    return run_job(prepare(full, words, method="rtn", format="gguf", **options), out)


def test_a_folder_in_float32_computes_the_same(
    full: Path, words: CalibrationText, tmp_path: Path
) -> None:
    out = write(full, tmp_path / "f32.gguf", words, type="F32")
    ours = LLM(str(out), **EXACT).generate(["the cat sat on the"], GREEDY)[0]
    theirs = LLM(str(full), **EXACT).generate(["the cat sat on the"], GREEDY)[0]
    assert ours.prompt_token_ids == theirs.prompt_token_ids
    assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
    assert ours.outputs[0].logprobs == theirs.outputs[0].logprobs


def test_numbers_that_float32_rounds_are_kept(words: CalibrationText, tmp_path: Path) -> None:
    """Configs of models that were float32 throughout spell 1e-5 so."""
    full = tiny_folder(tmp_path / "full", {"rms_norm_eps": 9.999999747378752e-06})
    eps = describe(write(full, tmp_path / "f32.gguf", words, type="F32")).spec.norm.eps
    assert np.float32(eps) == np.float32(1e-5)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q5_K_M", "Q4_K_M", "BF16"])
def test_types_are_those_of_the_recipe(
    full: Path, words: CalibrationText, tmp_path: Path, name: str
) -> None:
    """Read by the gguf package; rows of 64 columns have no K types."""
    read = gguf.GGUFReader(write(full, tmp_path / "out.gguf", words, type=name))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    base = {"Q5_K_M": "Q5_1", "Q4_K_M": "Q5_0"}.get(name, name)
    assert kinds["blk.0.ffn_gate.weight"] == base
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert kinds["token_embd.weight"] == (name if name == "BF16" else "Q8_0")
    number = read.get_field("general.file_type")
    assert number is not None and number.contents() == gguf.LlamaFileType[_spell(name)]


def _spell(name: str) -> str:
    return f"MOSTLY_{name}"


def test_weights_are_near_and_importance_helps_where_it_counts(
    full: Path, words: CalibrationText, tmp_path: Path
) -> None:
    rows, losses = read_first(full), []
    for weighed in (False, True):
        out = write(full, tmp_path / f"{weighed}.gguf", words, type="Q4_0", weighed=weighed)
        lost = read_first(out) - rows
        assert np.linalg.norm(lost) < 0.12 * np.linalg.norm(rows)
        losses.append(lost)
    assert (losses[0] != losses[1]).any()


def test_error_feedback_keeps_outputs_better(
    full: Path, words: CalibrationText, tmp_path: Path
) -> None:
    """Measured on the inputs of the first layer, which both share."""
    exact, losses = read_first(full), {}
    gram = measure_gram(prepare(full, words, method="gptq", format="gguf", type="Q4_0").job)
    for method in ("rtn", "gptq"):
        same = {"method": method, "format": "gguf", "type": "Q4_0", "weighed": True}
        out = run_job(prepare(full, words, **same), tmp_path / f"{method}.gguf")
        lost = exact - read_first(out)
        losses[method] = float(np.vdot(lost @ gram, lost))
    assert losses["gptq"] < 0.8 * losses["rtn"]


def read_first(model: Path) -> Any:
    """The first layer's q, k and v."""
    found = describe(model)
    slot = next(s for s in found.plan.slots if s.name == "layers.0.qkv")
    return read_matrix(found.checkpoint, slot)


def test_a_gguf_file_keeps_its_metadata(tmp_path: Path, words: CalibrationText) -> None:
    out = write(ASSETS / "stories.gguf", tmp_path / "q4.gguf", words, type="Q4_0", requantize=True)
    before, after = gguf.GGUFReader(ASSETS / "stories.gguf"), gguf.GGUFReader(out)
    changed = {"general.file_type", "general.quantization_version", KEY}
    for key, field in before.fields.items():
        if key not in changed and not key.startswith("GGUF."):
            assert after.fields[key].contents() == field.contents(), key
    assert {t.name: list(t.shape) for t in before.tensors} == {
        t.name: list(t.shape) for t in after.tensors
    }


@pytest.mark.usefixtures("short_text")
def test_the_bundled_model_in_four_bits(tmp_path: Path) -> None:
    few = Evaluation(tokens=2000, engine={"memory_limit": "8GiB"})
    done = quantize_model(
        str(ASSETS / "stories.gguf"), tmp_path / "q4.gguf", type="Q4_0", requantize=True,
        evaluation=few,
    )  # fmt: skip
    assert done.passport is not None and done.passport.requantized_from == "gguf (q8_0 f32)"
    assert 0.001 < done.passport.kld_mean < 0.5
    assert done.path.stat().st_size < 0.65 * (ASSETS / "stories.gguf").stat().st_size


@pytest.mark.usefixtures("short_text")
def test_the_passport_is_in_the_file(full: Path, tmp_path: Path) -> None:
    few = Evaluation(tokens=600, engine={"memory_limit": "8GiB", "threads": 1})
    done = quantize_model(str(full), tmp_path / "q8.gguf", bits=8, evaluation=few)
    assert done.passport is not None and done.passport.recipe == "q8_0"
    assert describe(done.path).quality.passport == done.passport


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_killed_job_leaves_no_file(
    full: Path, words: CalibrationText, tmp_path: Path, method: str
) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("layer 2"):
            raise KeyboardInterrupt

    out, whole = tmp_path / "out.gguf", tmp_path / "whole.gguf"
    same = {"method": method, "format": "gguf", "weighed": True}
    prepared = prepare(full, words, **same)
    with pytest.raises(KeyboardInterrupt):
        run_job(prepared, out, stop)
    assert not out.exists()
    run_job(prepare(full, words, **same), out)
    run_job(prepare(full, words, **same), whole)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"type": "Q4_KM", "format": "gguf"}, "type = 'Q4_KM' is not valid.*did you mean 'Q4_K_M'"),
        ({"type": "Q4_0", "format": "gptq"}, "type = 'Q4_0' is a type of gguf, not of gptq"),
    ],
)
def test_bad_types_are_refused(
    full: Path, words: CalibrationText, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        prepare(full, words, method="rtn", **options)
