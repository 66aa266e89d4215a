"""`LLM` on a folder of GPTQ: its text is that of the same values in float32; the files must be what
is requested.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from filewriters import Tensor, encode
from flyweight import LLM, SamplingParams
from flyweight.cli.main import app
from flyweight.errors import ConfigError
from flyweight.weights.checkpoint import open_checkpoint
from quantised_folders import GPTQ, pack
from tiny_model import CONFIG, tiny_folder, tiny_tensors

SHAPE = {"hidden_size": 64, "intermediate_size": 96}
ORDERED = GPTQ | {"desc_act": True}


def quantise(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every projection as GPTQ with an order, and the values in float32."""
    rng = np.random.default_rng(3)
    made, values = dict(tensors), dict(tensors)
    for name, (_, (n, k), _) in [item for item in tensors.items() if "proj" in item[0]]:
        del made[name]
        stem, groups = name.removesuffix(".weight"), k // 32
        codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(1, 17, (groups, n))
        scales = rng.uniform(0.02, 0.06, (groups, n)).astype(np.float16)
        order = rng.permutation(np.arange(k) // 32)
        made[f"{stem}.qweight"] = "i32", (k // 8, n), pack(codes, 4).tobytes()
        made[f"{stem}.qzeros"] = "i32", (groups, n // 8), pack(zeros.T - 1 & 15, 4).T.tobytes()
        made[f"{stem}.scales"] = encode(scales.astype(np.float32), "f16")
        made[f"{stem}.g_idx"] = "i32", (k,), order.astype(np.int32).tobytes()
        zeros = (zeros - 1 & 15) + 1
        dense = scales[order].astype(np.float32) * (codes - zeros[order])
        values[name] = encode(np.ascontiguousarray(dense.T), "f32")
    return made, values


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    room = tmp_path_factory.mktemp("quantised")
    made, values = quantise(tiny_tensors({**CONFIG, **SHAPE}))
    gptq = tiny_folder(room / "gptq", SHAPE | {"quantization_config": ORDERED}, made)
    return {"gptq": gptq, "dense": tiny_folder(room / "dense", SHAPE, values)}


def texts(path: Path, **more: Any) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(str(path), activations="f32", **more) as llm:
        found = llm.generate([[5, 9, 2, 77], [8, 100, 300]], params)
        return [list(output.outputs[0].token_ids) for output in found]


def test_the_text_is_that_of_the_values(folders: dict[str, Path]) -> None:
    assert texts(folders["gptq"]) == texts(folders["dense"])


def test_files_of_another_method_are_refused(folders: dict[str, Path]) -> None:
    with LLM(str(folders["gptq"]), quantization="gptq_marlin") as llm:
        rows = {row["feature"]: row for row in llm.effective}
        assert rows["quantization"]["effective"] == "gptq"
        assert rows["quantised weights"]["effective"] == "gptq"
        assert rows["quantised weights"]["reason"] == "kernels read the codes of every matrix"
    with LLM(str(folders["gptq"]), quantization={"quantMethod": "GPTQ", "actOrder": True}) as llm:
        (row,) = (row for row in llm.effective if row["feature"] == "quantization")
        assert row["effective"] == "gptq"
    with pytest.raises(ConfigError, match="has bits = 8, and gptq has 4"):
        LLM(str(folders["gptq"]), quantization={"method": "gptq", "bits": 8})
    with pytest.raises(ConfigError, match=r"'bitz' \(did you mean 'bits'\?\) is unknown"):
        LLM(str(folders["gptq"]), quantization={"method": "gptq", "bitz": 8})
    refused = {
        "awq": "quantization = 'awq', and gptq is quantised as gptq; leave it out",
        '{"method": "gptq", "bits": 8}': "has bits = 8, and gptq has 4; leave it out",
    }
    for requested, says in refused.items():
        with pytest.raises(ConfigError, match=says):
            LLM(str(folders["gptq"]), quantization=requested)
    with pytest.raises(ConfigError, match="'gptq', and dense is not quantised; leave it out"):
        LLM(str(folders["dense"]), quantization="gptq")


def test_inspect_and_check_know_it(folders: dict[str, Path]) -> None:
    reported = CliRunner().invoke(app, ["inspect", str(folders["gptq"])]).stdout
    assert "gptq: U4_G32_ORDER" in reported
    document = json.loads(
        CliRunner().invoke(app, ["inspect", str(folders["gptq"]), "--json"]).stdout
    )
    assert document["quantisation"] == "gptq"
    assert document["weights"]["layers.0.qkv"]["kinds"] == ["u4_g32_order"] * 3
    assert open_checkpoint(folders["gptq"]).opened == 0
    assert CliRunner().invoke(app, ["check", str(folders["gptq"])]).exit_code == 0


def test_matrices_without_a_kernel_are_reported(tmp_path: Path) -> None:
    made, _ = quantise(tiny_tensors({**CONFIG, **SHAPE}))
    for name, (kind, (groups, n), raw) in [i for i in made.items() if i[0].endswith("scales")]:
        stem = name.removesuffix("scales")
        made[name] = kind, (2 * groups, n), raw * 2  # groups of 16
        _, (_, words), points = made[f"{stem}qzeros"]
        made[f"{stem}qzeros"] = "i32", (2 * groups, words), points * 2
        order = np.arange(32 * groups, dtype=np.int32) // 16
        made[f"{stem}g_idx"] = "i32", order.shape, order.tobytes()
    config = SHAPE | {"quantization_config": GPTQ | {"group_size": 16}}
    path = tiny_folder(tmp_path / "m", config, made)
    reported = CliRunner().invoke(app, ["inspect", str(path)]).stdout
    says = "no kernel reads the codes of 14 matrices, which are kept as bf16"
    assert f"gptq: BF16 (and F32); {says}" in " ".join(reported.split())
    with LLM(str(path)) as llm:
        (row,) = (row for row in llm.effective if row["feature"] == "quantised weights")
        assert (row["effective"], row["reason"]) == ("gptq", says)
    words = ["run", str(path), "a", "--max-tokens", "1", "--temperature", "0"]
    assert f"m: {says}" in CliRunner().invoke(app, words).stderr
    assert len(texts(path)[0]) == 24
