"""What `make bench` and `make bench-all` run, and the models they make."""

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flyweight.describe import describe
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import open_checkpoint

BENCH = Path(__file__).parents[2] / "bench"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("LLAMA_BENCH", "LLAMA_BENCH_AVX2", "FLYWEIGHT_PEER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return script("suite")


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(models=tmp_path, results=tmp_path / "rows.jsonl", repetitions=3)


def test_the_short_plan_is_q4_0_and_bf16_up_to_2k(suite: ModuleType) -> None:
    parts = [*suite.short()]
    assert {part.model for part in parts} == {"qwen3-0.6b/q4_0", "qwen3-0.6b/bf16"}
    words = " ".join(" ".join(part.options) for part in parts)
    assert "512,2048" in words and "-d 2048" in words and "2,4,8,16,64" in words
    assert "8192" not in words
    rest = [*suite.rest()]
    assert not {p for p in parts if p in rest}, "bench-all is the rest"


def test_peers_that_are_not_here_are_not_requested(
    suite: ModuleType, args: argparse.Namespace
) -> None:
    (part, *_) = suite.short()
    words = suite.command(part, args, {"openvino"})
    assert words[words.index("--vs") + 1] == "openvino" and words.count("--vs") == 1
    assert words[words.index("--results") + 1] == str(args.results)
    assert "--vs" not in suite.command(part, args, set())


def test_openvino_gets_f16_next_to_bf16(suite: ModuleType, args: argparse.Namespace) -> None:
    part = suite.Part("qwen3-0.6b/bf16", ("-n", "8"), ("llama.cpp", "openvino"))
    words = suite.command(part, args, {"llama.cpp", "openvino"})
    assert f"openvino={args.models}/qwen3-0.6b/f16.gguf" in words and "llama.cpp" in words


def test_avx2_is_held_to_a_program_built_for_it(
    suite: ModuleType, args: argparse.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part, *_) = [part for part in suite.rest() if part.isa == "avx2"]
    assert "--vs" not in suite.command(part, args, {"llama.cpp", "openvino"})
    monkeypatch.setenv("LLAMA_BENCH_AVX2", "/there/llama-bench")
    words = suite.command(part, args, {"llama.cpp", "openvino"})
    assert words[-4:] == ["--vs", "llama.cpp", "--vs-binary", "/there/llama-bench"]


def test_the_smallest_model_is_measured_where_it_is(
    suite: ModuleType, args: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWEIGHT_DATA", str(tmp_path))
    assert suite.STORIES not in {part.model for part in suite.rest()}
    file = tmp_path / "stories260k" / "stories260K-f32.gguf"
    file.parent.mkdir()
    file.touch()
    (part,) = [part for part in suite.rest() if part.model == suite.STORIES]
    assert str(file) in suite.command(part, args, set())


def test_a_comparison_that_is_left_out_is_reported(
    suite: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.peers_here()
    assert "LLAMA_BENCH_AVX2 is not set\n" in capsys.readouterr().err
    monkeypatch.setenv("LLAMA_BENCH_AVX2", "/there/llama-bench")
    suite.peers_here()
    assert "LLAMA_BENCH_AVX2" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def shapes() -> ModuleType:
    pytest.importorskip("gguf")
    return script("make_shapes")


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0", "q4_k_m"])
def test_made_models_are_what_they_say(
    shapes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, kind: str
) -> None:
    """They load, are mixed as llama.cpp mixes them, and their weights have a usual size."""
    tiny = shapes.Shape(arch, 8, 256, 4, 2, 64, 512, 600, 128, 1e6, 1e-6)
    monkeypatch.setitem(shapes.SHAPES, "tiny", tiny)
    shapes.make(tmp_path, ["tiny"], [kind])
    path = tmp_path / "tiny" / f"{kind}.gguf"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    found = describe(path)
    assert (found.spec.family, len(found.spec.layers), found.spec.vocab) == (arch, 8, 600)
    assert len(found.tokenizer.encode("hello")) == 5  # a token a byte
    checkpoint = open_checkpoint(path)
    kinds = {name: info.kind for name, info in checkpoint.tensors.items()}
    main = {"q4_k_m": "q4_k"}.get(kind, kind)
    head = "q6_k" if kind in ("q4_0", "q4_k_m") else main
    assert kinds["model.embed_tokens.weight"] == head
    assert kinds["model.layers.1.self_attn.q_proj.weight"] == main
    down = [kinds[f"model.layers.{i}.mlp.down_proj.weight"] for i in range(8)]
    more = [0, 3, 6, 7] if kind == "q4_k_m" else []  # the first, the last, every third between
    assert down == ["q6_k" if i in more else main for i in range(8)]
    for name, info in checkpoint.tensors.items():
        if len(info.shape) < 2:
            continue
        rows = checkpoint.read(name, 0, info.shape[0])
        values = rows.dequantize() if isinstance(rows, GroupedWeight) else rows
        if values.dtype == np.uint16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        assert 0.01 < float(np.std(values.astype(np.float32))) < 0.04, (name, info.kind)
        assert abs(float(np.mean(values.astype(np.float32)))) < 0.01, name
    checkpoint.close()
