"""Jobs of `flyweight quantize`: what they write, how they resume, what they refuse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Run, measure_gram, prepare, run_job

from flyweight import LLM, SamplingParams
from flyweight.describe import describe
from flyweight.errors import ConfigError
from flyweight.quantize.calibration import CalibrationText
from flyweight.quantize.methods import METHODS
from flyweight.quantize.options import read_config
from flyweight.weights.load import read_matrix
from tiny_model import CONFIG, tiny_folder, tiny_tensors

WAYS = [(name, form) for name, kind in METHODS.items() for form in kind.formats]
LOST = {2: 0.6, 3: 0.3, 4: 0.2, 8: 0.02}  # share of a matrix's norm that its codes may lose
KILLED = """
import os, signal, sys
from pathlib import Path
from jobs import make_words, prepare, run_job
prepared = prepare(Path(sys.argv[1]), make_words(), method=sys.argv[3])
def report(stage, done, total):
    if stage.startswith("layer 2"):
        os.kill(os.getpid(), signal.SIGKILL)
run_job(prepared, Path(sys.argv[2]), report)
"""


def read_slots(model: Path) -> dict[str, Any]:
    """Every matrix in layers of a folder, dequantised."""
    found = describe(model)
    slots = [s for s in found.plan.slots if s.kind == "linear" and s.name.startswith("layers.")]
    read = {slot.name: read_matrix(found.checkpoint, slot) for slot in slots}
    found.checkpoint.close()
    return read


@pytest.mark.parametrize(("method", "form"), WAYS)
def test_what_is_written_loads_and_is_near(
    quantise: Run, full: Path, method: str, form: str
) -> None:
    bits = METHODS[method].bits[0] if form != "awq" else 4
    rows = method in ("int8-dynamic", "int8-static", "smoothquant")
    group = {} if form == "gguf" else {"group_size": -1 if rows else 32}
    symmetric = False if form == "awq" else None
    out = quantise(method=method, format=form, bits=bits, symmetric=symmetric, **group)
    llm = LLM(str(out), memory_limit="8GiB", threads=1)
    given = SamplingParams(temperature=0, max_tokens=4)
    assert len(llm.generate(["the cat"], given)[0].outputs[0].token_ids) == 4
    lossy = method == "binary"
    moved = lossy or method in ("awq", "smoothquant", "int8-static")  # scales move between matrices
    exact, made = read_slots(full), read_slots(out)
    assert exact.keys() == made.keys()
    for name, rows in exact.items():
        lost = np.linalg.norm(rows - made[name]) / np.linalg.norm(rows)
        assert moved or 0 < lost < LOST[bits], name


def test_moved_scales_keep_what_a_layer_computes(quantise: Run, full: Path) -> None:
    """With 8 bits little else is lost."""
    params = SamplingParams(temperature=0, max_tokens=6)
    exact = {"activations": "f32", "kv_cache_dtype": "f32", "memory_limit": "8GiB", "threads": 1}
    expected = LLM(str(full), **exact).generate(["the cat sat on"], params)[0].outputs[0]
    out = quantise(method="awq", format="gptq", bits=8)
    assert LLM(str(out), **exact).generate(["the cat sat on"], params)[0].outputs[0].token_ids == (
        expected.token_ids
    )


def test_rounding_to_nearest_is_the_formula(quantise: Run, full: Path) -> None:
    exact, made = read_slots(full), read_slots(quantise(method="rtn", format="gptq", bits=4))
    for name, rows in exact.items():
        cells = rows.reshape(len(rows), -1, 32)
        scale = (np.abs(cells).max(axis=2, keepdims=True) / np.float32(7.5)).astype(np.float16)
        codes = np.clip(np.rint(cells / scale.astype(np.float32)), -8, 7)
        expected = (codes * scale.astype(np.float32)).reshape(rows.shape)
        assert (made[name] == expected).all(), name


def test_gptq_keeps_outputs_better_than_rounding(
    quantise: Run, full: Path, words: CalibrationText
) -> None:
    """Measured on the inputs of the first layer, which both share."""
    exact = read_slots(full)["layers.0.qkv"]
    job = prepare(full, words, method="gptq", bits=3).job
    gram = measure_gram(job)
    losses = {}
    for method in ("rtn", "gptq"):
        lost = exact - read_slots(quantise(method=method, format="gptq", bits=3))["layers.0.qkv"]
        losses[method] = float(np.vdot(lost @ gram, lost))
    assert losses["gptq"] < 0.8 * losses["rtn"]


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_a_killed_job_resumes_to_the_same_bytes(
    full: Path, words: CalibrationText, quantise: Run, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "killed"
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, full, out, method],
        env={"PYTHONPATH": ":".join(sys.path)}, check=False,
    )  # fmt: skip
    assert ended.returncode == -9
    assert not out.exists()
    assert json.loads((tmp_path / "killed.partial/journal.json").read_text())["layers"] == 1
    with pytest.raises(ConfigError, match="unfinished job with other options"):
        run_job(prepare(full, words, method=method, bits=8), out)
    run_job(prepare(full, words, method=method), out)
    whole = quantise(method=method)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.iterdir())
    for file in out.iterdir():
        assert file.read_bytes() == (whole / file.name).read_bytes(), file.name
    assert not (tmp_path / "killed.partial").exists()


def test_layers_have_their_own_precision(quantise: Run, full: Path) -> None:
    out = quantise(
        method="rtn", format="compressed-tensors", layer_precision="0=int8,1=fp16,lm_head=fp32"
    )
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert [g["weights"]["num_bits"] for g in config["config_groups"].values()] == [8]
    found = describe(out)
    assert found.checkpoint.tensors["model.layers.1.mlp.up_proj.weight"].kind == "f16"
    exact, made = read_slots(full), read_slots(out)
    assert (made["layers.1.up"] == exact["layers.1.up"].astype(np.float16)).all()
    assert (made["layers.0.up"] != exact["layers.0.up"]).any()


REFUSED = [
    ({"method": "gptg"}, "method = 'gptg' .*did you mean 'gptq'"),
    ({"method": "nf4", "bits": 3}, "bits = 3 is not supported by method nf4; allowed: 4"),
    ({"method": "awq", "format": "hqq"}, "format = 'hqq' is not supported by method awq"),
    ({"group_size": 24}, "group_size = 24 does not divide the 64 columns .*nearest valid: 32"),
    ({"group_size": 4}, "group_size = 4 .*"),
    ({"layer_precision": "0=int8"}, "layer_precision leaves out layer 1 of 2 layers"),
    ({"layer_precision": "0-1=int8,1=fp16"}, "names layer 1 twice"),
    ({"layer_precision": "0-2=int8"}, "layer_precision = '0-2' names no layers .*0 to 1"),
    ({"layer_precision": "0-1=int9"}, "layer_precision = 'int9' is not valid.*did you mean 'int8'"),
    ({"layer_precision": "0-1"}, "LAYERS=PRECISION expected"),
    ({"method": "gptq", "damping": 0.0}, "damping = 0.0 is not valid; allowed: .* 0 and 1"),
    ({"method": "gptq", "damping": "x"}, "damping = 'x' is not valid; allowed: .* 0 and 1"),
    ({"method": "smoothquant", "alpha": 2}, "alpha = 2 is not valid; allowed: .* 0 and 1"),
    ({"bits": 5}, "bits = 5 is not supported by method rtn; allowed: 2, 3, 4, 8; nearest valid: 4"),
    ({"bits": "4"}, "bits = '4' is not supported by method rtn; .*nearest valid: 4"),
    ({"method": "gptq", "format": "compressed-tensors", "act_order": True}, "act_order = True can"),
    ({"method": "awq", "target_size": 10**6}, "format = 'gguf' is not supported by method awq"),
    ({"samples": 0}, "samples = 0 .*"),
]


@pytest.mark.parametrize(("options", "error"), REFUSED)
def test_bad_options_are_refused(
    full: Path, words: CalibrationText, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        prepare(full, words, **options)


def test_groups_divide_the_columns_of_every_matrix(full: Path, words: CalibrationText) -> None:
    """Of 64 and of 128 columns; the method's own size is 128."""
    job = prepare(full, words, method="rtn", group_size=None).job
    assert job.options.precision.group == 64
    assert job.notes == ["group_size = 64, as 128 does not divide the columns of every matrix"]
    with pytest.raises(ConfigError, match=r"128 does not divide the 64 columns .*valid: 64"):
        prepare(full, words, method="rtn", group_size=128)


def test_a_quantised_model_is_refused(quantise: Run, words: CalibrationText) -> None:
    out = quantise(method="rtn", format="gptq")
    with pytest.raises(ConfigError, match=r"is quantised already \(.*give the model it was made"):
        prepare(out, words)
    again = prepare(out, words, requantize=True, bits=8)
    assert again.job.assignment.modules


def test_short_calibrations_are_refused(full: Path) -> None:
    for text in ("", "the cat"):
        with pytest.raises(ConfigError, match=r"calibration = 'x' has \d+ tokens; at least 63"):
            prepare(full, CalibrationText.of("x", [text]), method="gptq")


def test_a_full_disk_is_refused_before_anything_is_computed(
    full: Path, words: CalibrationText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail)
    with pytest.raises(ConfigError, match=r"needs \d+ bytes: No space left on device"):
        run_job(prepare(full, words), tmp_path / "out")
    assert not (tmp_path / "out").exists()


MEASURED = """
import re, sys, threading
from pathlib import Path
from jobs import make_words, prepare, run_job
most = [0]
over = threading.Event()
def watch():
    while not over.wait(0.02):
        found = re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())
        most[0] = max(most[0], 1024 * int(found[1]))
threading.Thread(target=watch, daemon=True).start()
method, *form = sys.argv[3].split()
form = {"format": form[0]} if form else {}
prepared = prepare(Path(sys.argv[1]), make_words(), method=method, samples=2, **form)
run_job(prepared, Path(sys.argv[2]))
over.set()
print(most[0], prepared.needs.peak)
"""


BASE = 60 << 20  # bytes of Python and its libraries


@pytest.mark.parametrize("method", ["rtn", "gptq", "gptq gguf", "awq"])
def test_memory_is_what_was_planned(tmp_path: Path, method: str, at_length: bool) -> None:
    """Of a model whose weights are several times as large as one of its layers."""
    layers = 12 if at_length or method == "rtn" else 3 if "gguf" in method else 5
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": layers}
    tensors = tiny_tensors({**CONFIG, **wide})
    model = tiny_folder(tmp_path / "wide", wide, tensors)
    whole = sum(len(tensor[2]) for tensor in tensors.values())
    found = subprocess.run(
        [sys.executable, "-c", MEASURED, model, tmp_path / "out", method],
        env={"PYTHONPATH": ":".join(sys.path), "MALLOC_ARENA_MAX": "1"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    peak, planned = map(int, found.stdout.split())
    assert peak <= planned
    assert method != "rtn" or planned < whole + BASE


CHOSEN = MEASURED.replace(
    """method, *form = sys.argv[3].split()
form = {"format": form[0]} if form else {}
prepared = prepare(Path(sys.argv[1]), make_words(), method=method, samples=2, **form)
run_job(prepared, Path(sys.argv[2]))
over.set()
print(most[0], prepared.needs.peak)
""",
    """import flyweight.quantize.mixed as mixed
planned, real = [], mixed.estimate_choice
mixed.estimate_choice = lambda *given: planned.append(real(*given)) or planned[0]
prepare(Path(sys.argv[1]), make_words(), method="rtn", target_size=int(sys.argv[2]), length=64)
over.set()
print(most[0], planned[0])
""",
)


def test_memory_of_a_choice_is_what_was_planned(tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
    tensors = tiny_tensors({**CONFIG, **wide})
    model = tiny_folder(tmp_path / "wide", wide, tensors)
    size = sum(len(tensor[2]) for tensor in tensors.values()) // 5
    found = subprocess.run(
        [sys.executable, "-c", CHOSEN, model, str(size)],
        env={"PYTHONPATH": ":".join(sys.path), "MALLOC_ARENA_MAX": "1"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    peak, planned = map(int, found.stdout.split())
    assert peak <= planned


def test_dicts_of_other_tools() -> None:
    assert read_config(
        {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    ) == {"method": "awq", "symmetric": False, "group_size": 128, "bits": 4}
    assert read_config({"q_group_size": 64}) == {"method": "awq", "group_size": 64}
    assert read_config({"bits": 4, "group_size": 128, "desc_act": False}) == {
        "method": "gptq", "bits": 4, "group_size": 128, "act_order": False,
    }  # fmt: skip
    assert read_config({"bits": 4, "sym": True}) == {"bits": 4, "symmetric": True}
    assert read_config({"w_bit": 4, "method": "hqq"})["method"] == "hqq"
    seed = {"type": "int4", "method": "GPTQ", "groupSize": 128, "actOrder": True}
    assert read_config({"quantization": seed}) == {
        "bits": 4, "method": "gptq", "group_size": 128, "act_order": True,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="desc_act = false contradicts actOrder = true"):
        read_config({"quantization": seed | {"desc_act": False}})
    with pytest.raises(ConfigError, match="did you mean 'group_size'"):
        read_config({"groupsize": 128})
