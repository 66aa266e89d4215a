"""`flyweight quantize` as a new user meets it: a name, a size, a server; and refusals."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from flyweight.describe import describe
from flyweight.quantize.naming import name_output, spell_size
from flyweight.quantize.options import QuantizeOptions
from http_server import started
from hub_server import Repo
from tiny_model import CONFIG, tiny_folder, tiny_tensors

pytestmark = pytest.mark.usefixtures("short_text")
WIDER = {"hidden_size": 64, "intermediate_size": 128}
SMALL = ("--samples", 4, "--length", 32, "--eval-tokens", 600, "--threads", 1)
LIMIT = ("--memory-limit", "8GiB")


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = tiny_tensors({**CONFIG, **WIDER})
    return tiny_folder(tmp_path_factory.mktemp("wider") / "tiny-f32", WIDER, tensors)


def test_a_name_of_the_hub_becomes_a_server(client, hub, wider, tmp_path, short_data) -> None:
    """The README's walk, with the files and the size of a tiny model."""
    hub.repos["tiny/words"] = Repo({p.name: p.read_bytes() for p in wider.iterdir()})
    code = f"import os; os.chdir({str(tmp_path)!r})\nfrom flyweight.cli.main import main\n"
    words = ["quantize", "tiny/words", "--target-size", "100kB", *map(str, (*SMALL, *LIMIT))]
    got = client(code=code + f"raise SystemExit(main({words!r}))", **short_data)
    assert got.code == 0, got.err
    shown = dict(line.split(":", 1) for line in got.out.splitlines())
    out = tmp_path / "words-100kB.gguf"
    assert shown["Output"].split(",")[0].strip() == out.name
    assert 0 < out.stat().st_size <= 100_000 and list(tmp_path.iterdir()) == [out]
    assert "mean KLD" in shown["Note"] and "mean KLD" in shown["Quality"]
    assert "needs" in got.err and "of memory at the peak" in got.err
    serve = shlex.split(shown["Serve"])
    assert serve == ["flyweight", "serve", out.name]
    passport = describe(out).quality.passport
    assert passport is not None and passport.command.startswith("flyweight quantize tiny/words ")
    with started(str(out)) as running:
        (model,) = json.loads(running.get("/v1/models").body)["data"]
        assert model["quality"]["kld_mean"] == passport.kld_mean


@pytest.mark.parametrize(
    ("model", "options", "name"),
    [
        ("Qwen/Qwen3-0.6B", {"type": "Q4_K_M"}, "Qwen3-0.6B-Q4_K_M.gguf"),
        ("Qwen/Qwen3-0.6B", {"target_size": 2 * 10**9}, "Qwen3-0.6B-2GB.gguf"),
        ("Qwen/Qwen3-0.6B:BF16", {"max_kld": 0.02}, "Qwen3-0.6B-kld0.02.gguf"),
        ("Qwen/Qwen3-0.6B", {"method": "gptq"}, "Qwen3-0.6B-gptq-4bit"),
        ("Qwen/Qwen3-0.6B", {"method": "gptq", "type": "Q4_0"}, "Qwen3-0.6B-gptq-Q4_0.gguf"),
        ("org/name-GGUF:F16", {"format": "gguf", "bits": 8}, "name-Q8_0.gguf"),
        (None, {"method": "hqq", "bits": 2}, "stories-hqq-2bit"),
        ("org/name", {"format": "gguf", "layer_precision": "0-1=q6_k"}, "name-layers.gguf"),
    ],
)
def test_names_of_what_is_made(model, options, name) -> None:
    assert name_output(model, QuantizeOptions(**options)) == name


def test_names_of_files_and_folders(tmp_path) -> None:
    (tmp_path / "my.model-f16").mkdir()
    (tmp_path / "small-BF16.gguf").touch()
    options = QuantizeOptions(method="awq")
    assert name_output(str(tmp_path / "my.model-f16"), options) == "my.model-f16-awq-4bit"
    assert name_output(str(tmp_path / "small-BF16.gguf"), options) == "small-awq-4bit"


@pytest.mark.parametrize(
    ("size", "text"),
    [(2 * 10**9, "2GB"), (2_200_000_000, "2.2GB"), (2**31, "2GiB"), (400 * 10**6, "400MB"),
     (300 * 2**20, "300MiB"), (1_234_567, "1234.567kB"), (999, "999B"), (100_000, "100kB")],
)  # fmt: skip
def test_sizes_in_names(size, text) -> None:
    assert spell_size(size) == text


def test_the_folder_is_named_after_model_and_method(command, wider, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("quantize", wider, "--method", "gptq", "--group-size", 32, *SMALL, *LIMIT)
    got = command(*words)
    assert got.code == 0, got.err
    assert (tmp_path / "tiny-f32-gptq-4bit/config.json").is_file()
    assert "\nServe:     flyweight serve tiny-f32-gptq-4bit\n" in got.out
    again = command(*words)
    assert again.code == 2 and again.out == ""
    assert again.err == (
        "error: out = 'tiny-f32-gptq-4bit' exists already; remove it, or give another name\n"
    )


REFUSED = [
    (("--method", "nf4", "--bits", 3), "bits = 3 is not supported by method nf4; allowed: 4"),
    (("--method", "awq", "--format", "awq", "--bits", 3), "format = 'awq' holds weights of 4 bits"),
    (("--layer-precision", "0-1=int8,1=fp16"), "names layer 1 twice"),
    (("--layer-precision", "0=int8"), "leaves out layer 1 of 2 layers"),
    (("--target-size", "60kB"), "smallest types; nearest valid: "),
    (("--target-size", "much"), "target_size = 'much' is not a size"),
    (("--target-size", "80%"), "target_size = '80%' is not a size; write 6GiB or 512MB"),
    (("--max-kld", "1e-9"), "max_kld = 1e-09 cannot be met by any of the types; nearest valid: "),
    (("--calibration", "EMPTY", "--method", "gptq"), "calibration = 'empty.txt' has 0 tokens"),
    (("--calibration", "SHORT", "--method", "gptq"), "calibration = 'short.txt' has "),
    (("--calibration", "nowhere.txt", "--method", "gptq"), "nowhere.txt"),
    (("--config", "SEED"), "desc_act = false contradicts actOrder = true"),
]


UNUSED = [
    (("--layer-precision", "0-1=int4"), "out.gguf", "layer_precision = 'int4' is no type of gguf"),
    (("--group-size", 64), "out.gguf", "group_size = 64 does not apply to format gguf"),
    (("--asym",), "out.gguf", "symmetric = False does not apply to format gguf"),
    (("--type", "Q8_0", "--bits", 4), "out.gguf", "bits = 4 cannot be combined with type"),
    (("--target-size", "1MB", "--bits", 4), "out.gguf", "cannot be combined with target_size"),
    (("--alpha", 0.4), "out", "alpha = 0.4 is not used by method rtn; leave it out, or give"),
    (("--damping", 0.4), "out", "damping = 0.4 is not used by method rtn"),
    (("--format", "gptq"), "out.gguf", "format = 'gptq' is a folder, but"),
    (("--calibration", "TEXT"), "out", "calibration is not used by method rtn; leave it out"),
]


@pytest.mark.parametrize(("more", "out", "error"), UNUSED)
def test_options_without_effect_are_refused(command, wider, tmp_path, more, out, error) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat")
    given = [tmp_path / "text.txt" if word == "TEXT" else word for word in more]
    got = command("quantize", wider, tmp_path / out, *given, *SMALL, *LIMIT)
    assert got.code == 2 and got.out == "" and got.err.count("\n") == 1
    assert got.err.startswith("error: ") and error in got.err
    assert not [*tmp_path.glob("out*")]


@pytest.mark.parametrize(("more", "error"), REFUSED)
def test_refusals_are_one_line(command, wider, tmp_path, more, error) -> None:
    seed = {"type": "int4", "method": "GPTQ", "groupSize": 32, "actOrder": True, "desc_act": False}
    texts = {"EMPTY": "", "SHORT": "the cat", "SEED": json.dumps({"quantization": seed})}
    for name, text in texts.items():
        (tmp_path / f"{name.lower()}.txt").write_text(text)
    given = [tmp_path / f"{word.lower()}.txt" if word in texts else word for word in more]
    group = () if {"--target-size", "--max-kld"} & {*more} else ("--group-size", 32)
    got = command("quantize", wider, tmp_path / "out", *group, *SMALL, *LIMIT, *given)
    assert got.code == 2 and got.out == "", got.out
    lines = [line for line in got.err.splitlines() if "needs" not in line or "error" in line]
    assert len(lines) == 1 and lines[0].startswith("error: ") and error in lines[0], got.err
    assert not (tmp_path / "out").exists()
    kept = ["measurements.jsonl"] if "cannot be met" in error else []  # for another budget
    assert [file.name for file in tmp_path.glob("out.partial/*")] == kept


@pytest.mark.parametrize("value", [0.0, 1e30, float("nan")])
def test_calibrations_that_say_nothing_are_refused(command, tmp_path, value) -> None:
    """A norm of zeros gives inputs that are all 0, a large one squares that are not finite; NaN is
    one of the model's.
    """
    tensors = tiny_tensors({**CONFIG, **WIDER})
    name = "model.layers.1.input_layernorm.weight"
    kind, shape, _ = tensors[name]
    tensors[name] = kind, shape, np.full(shape, value, np.float32).tobytes()
    model = tiny_folder(tmp_path / "model", WIDER, tensors)
    words = ("quantize", model, tmp_path / "out", "--method", "gptq", "--group-size", 32)
    got = command(*words, *SMALL, *LIMIT)
    assert got.code == 2, got.out
    *_, last = got.err.splitlines()
    inputs = "calibration gives inputs of layers.1.qkv that are"
    expected = {0.0: f"{inputs} all 0", 1e30: f"{inputs} not finite"}.get(
        value,
        f"model = '{model}' has values that are not finite in tensor '{name}'; "
        "flyweight check MODEL counts them",
    )
    assert last == f"error: {expected}", got.err
    assert not (tmp_path / "out").exists()
