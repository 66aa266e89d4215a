"""`--layer-precision` for GGUF files, whose types and weights are read by the gguf package."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from jobs import prepare, run_job

from flyweight import LLM, ConfigError, SamplingParams, quantize_model
from flyweight.describe import ASSETS, describe
from flyweight.quantization import Evaluation
from flyweight.quantize.calibration import CalibrationText
from tiny_model import CONFIG, tiny_folder, tiny_tensors

STORIES = ASSETS / "stories.gguf"  # 6 layers of rows of 192 and 512; its head is its embedding
LAYERS = ("Q8_0", "Q4_0", "Q8_0", "F16", "BF16", "F32")
NAMED = "0=int8,1=q4_0,2=Q8_0,3=fp16,4=bf16,5=fp32"
LOST = {"F32": 0.0, "F16": 5e-4, "BF16": 4e-3, "Q8_0": 0.01, "Q5_1": 0.06, "Q4_0": 0.12}
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def read(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def list_kinds(path: Path) -> dict[str, str]:
    return {name: tensor.tensor_type.name for name, tensor in read(path).items()}


def dequantise(tensor: Any) -> np.ndarray:
    return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float64)


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_the_bundled_model_with_a_type_a_layer(
    words: CalibrationText, tmp_path: Path, method: str
) -> None:
    given = {"method": method, "format": "gguf", "requantize": True}
    prepared = prepare(STORIES, words, layer_precision=f"{NAMED},lm_head=q5_1", **given)
    out = run_job(prepared, tmp_path / "out.gguf")
    kinds = list_kinds(out)
    for i, kind in enumerate(LAYERS):
        assert {kinds[f"blk.{i}.{part}.weight"] for part in MATRICES} == {kind}
        assert kinds[f"blk.{i}.attn_norm.weight"] == "F32"
    assert kinds["token_embd.weight"] == "Q5_1" and kinds["output_norm.weight"] == "F32"
    source, made = read(STORIES), read(out)
    assert source.keys() == made.keys()
    for name, tensor in made.items():
        exact = dequantise(source[name])
        lost = np.linalg.norm(dequantise(tensor) - exact) / np.linalg.norm(exact)
        assert lost <= LOST[kinds[name]] * (1 if method == "rtn" else 1.5), name
    field = gguf.GGUFReader(out).get_field("general.file_type")
    assert field is not None and field.contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    llm = LLM(str(out), memory_limit="8GiB", threads=1)
    params = SamplingParams(temperature=0, max_tokens=4)
    assert len(llm.generate(["Once upon a time"], params)[0].outputs[0].token_ids) == 4


def test_layers_that_are_not_named_keep_the_type(words: CalibrationText, tmp_path: Path) -> None:
    """And their bytes."""
    given = {"method": "rtn", "type": "Q4_0", "requantize": True}
    plain = read(run_job(prepare(STORIES, words, **given), tmp_path / "plain.gguf"))
    prepared = prepare(STORIES, words, layer_precision="2-3=int8", **given)
    made = read(run_job(prepared, tmp_path / "made.gguf"))
    for name, tensor in made.items():
        named = name.startswith(("blk.2.", "blk.3.")) and "norm" not in name
        if named:
            assert tensor.tensor_type.name == "Q8_0"
        else:
            assert tensor.tensor_type == plain[name].tensor_type
            assert (tensor.data == plain[name].data).all()


def test_k_types_and_an_embedding_of_its_own(words: CalibrationText, tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512}
    model = tiny_folder(tmp_path / "wide", wide, tiny_tensors({**CONFIG, **wide}))
    tied = describe(model).spec.tie
    tops = "lm_head=q6_k" if tied else "embed=q3_k,lm_head=q6_k"
    prepared = prepare(
        model, words, method="rtn", format="gguf", layer_precision=f"0=q6_k,1=iq4_xs,{tops}"
    )
    kinds = list_kinds(run_job(prepared, tmp_path / "out.gguf"))
    assert {kinds[f"blk.0.{part}.weight"] for part in MATRICES} == {"Q6_K"}
    assert {kinds[f"blk.1.{part}.weight"] for part in MATRICES} == {"IQ4_XS"}
    assert kinds["token_embd.weight"] == ("Q6_K" if tied else "Q3_K")
    assert tied or kinds["output.weight"] == "Q6_K"


@pytest.mark.usefixtures("short_text")
def test_the_passport_says_what_was_named(tmp_path: Path) -> None:
    few = Evaluation(tokens=600, engine={"memory_limit": "8GiB", "threads": 1})
    done = quantize_model(
        str(STORIES), tmp_path / "out.gguf", layer_precision="0-5=q5_1", requantize=True,
        evaluation=few,
    )  # fmt: skip
    assert done.passport is not None and done.passport.recipe == "q5_1, q8_0"
    assert "--layer-precision 0-5=q5_1" in done.passport.command


REFUSED = [
    ("0-1=q4_0", {}, "leaves out layers 2-5 of 6 layers; name every layer .* or give the --type"),
    ("0-5=int8,5=fp16", {}, "layer_precision names layer 5 twice"),
    ("0-6=int8", {}, "layer_precision = '0-6' names no layers .*allowed: 0 to 5"),
    ("0-5=int4", {}, "'int4' is no type of gguf that is written; .*; nearest valid: q4_0"),
    ("0-5=q4_k_m", {}, "layer_precision = 'q4_k_m' is no type .*did you mean 'q4_k'"),
    ("0-5=iq2_xs", {}, "layer_precision = 'iq2_xs' is no type of gguf that is written"),
    (
        "0-5=q4_k", {},
        "layer_precision = 'q4_k' has blocks of 256, which do not divide the 192 columns of "
        "blk.0.attn_q.weight; nearest valid: q5_0",
    ),
    ("0-5=int8,embed=q6_k", {}, "the 192 columns of token_embd.weight; nearest valid: q8_0"),
    ("0-5=int8,embed=q5_0,lm_head=q8_0", {}, "names two types for embed and lm_head, which are"),
    ("0-5=int8", {"target_size": 10**7}, "cannot be combined with target_size"),
    ("0-5=int8", {"max_kld": 0.1}, "cannot be combined with max_kld"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "more", "error"), REFUSED)
def test_what_cannot_be_is_refused(
    words: CalibrationText, text: str, more: dict[str, Any], error: str
) -> None:
    given = {"method": "rtn", "format": "gguf", "requantize": True, "layer_precision": text}
    with pytest.raises(ConfigError, match=error) as refused:
        prepare(STORIES, words, **given | more)
    assert "\n" not in str(refused.value)


def test_gguf_types_are_refused_by_other_formats(full: Path, words: CalibrationText) -> None:
    with pytest.raises(ConfigError, match=r"'q6_k' is not valid.*types of GGUF need --format gguf"):
        prepare(full, words, layer_precision="0-1=q6_k")


def test_rows_that_no_block_divides_need_floats(words: CalibrationText, tmp_path: Path) -> None:
    odd = {"hidden_size": 64, "intermediate_size": 80}
    model = tiny_folder(tmp_path / "odd", odd, tiny_tensors({**CONFIG, **odd}))
    given = {"method": "rtn", "format": "gguf"}
    with pytest.raises(ConfigError, match=r"the 80 columns of blk.1.ffn_down.weight; .*: f16"):
        prepare(model, words, layer_precision="0=f16,1=q8_0", **given)
    prepared = prepare(model, words, layer_precision="0-1=f16", **given)
    kinds = list_kinds(run_job(prepared, tmp_path / "out.gguf"))
    assert kinds["blk.1.ffn_down.weight"] == "F16"
