"""The likely peak of an engine, against what a process of its own holds."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flyweight.cli.main import main
from flyweight.models.registry import find_family
from flyweight.planning.memory import MemoryPlanner, PlannedUse
from flyweight.planning.memory_probe import probe_memory
from flyweight.planning.memory_report import check_prediction
from flyweight.planning.published import CONFIGS
from flyweight.spec import Files
from tiny_model import VOCABULARY, tiny_folder

BLOCK = 1 << 20  # weights drawn at once, and written again and again
LLAMA = {
    **CONFIGS["llama-3-8b"], "num_hidden_layers": 12, "hidden_size": 1024,
    "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 64000,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 128, "num_hidden_layers": 10},
    "gemma3": {
        **LLAMA, "model_type": "gemma3_text", "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "vocab_size": 262144, "sliding_window": 512, "rope_local_base_freq": 1e4,
        "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True, "layer_types": ["sliding_attention", "full_attention"] * 6,
    },
    "gpt2": {
        "model_type": "gpt2", "n_layer": 24, "n_embd": 1024, "n_head": 16, "n_positions": 1024,
        "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "torch_dtype": "bfloat16",
    },
}  # fmt: skip


def write_random(folder: Path, config: dict[str, Any]) -> Path:
    """A model in bfloat16 with random weights, and a vocabulary that prompts do not need."""
    family = find_family(config)
    sources = [one for slot in family.plan(family.read_spec(config), Files()).slots
               for one in slot.sources]  # fmt: skip
    shapes = {one.tensor: one.shape for one in sources}
    shapes |= {one.bias: one.bias_shape for one in sources if one.bias}
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    drawn = np.random.default_rng(0).normal(0, 0.02, BLOCK).astype(np.float32)
    block = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, at, len(block)):
            file.write(block[: at - begin])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((VOCABULARY / name).read_bytes())
    return folder


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(MODELS))
def test_the_likely_peak_is_within_three_percent(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_random(tmp_path, MODELS[family])
    words = ("--context", "256", "--sequences", "4", "--check", "--json")
    assert main(["plan", "memory", str(folder), *words]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["check"]["rows"]
    found = {row["figure"]: row for row in rows}
    assert abs(found["likely peak"]["difference"]) <= 0.03, found
    assert found["measured peak (PSS)"]["bytes"] > 300 << 20


def test_a_measured_peak_is_within_the_bound(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    use = PlannedUse(64, sequences=2)
    options = use.list_options() | {"model": str(folder), "threads": 1, "packed_cache": False}
    found = probe_memory(options)
    assert 0 < found["held"] < found["peak"] < 200 << 20


def test_a_difference_is_a_share_of_what_was_measured(planner: MemoryPlanner) -> None:
    use = PlannedUse(64, sequences=2)
    likely = planner.expect_peak(use)
    measured = {"held": planner.held, "peak": likely * 2}
    rows = check_prediction(planner, use, measured).list_records()
    assert rows[1]["bytes"] == likely and rows[1]["difference"] == -0.5


def test_the_likely_peak_is_below_the_bound(planner: MemoryPlanner) -> None:
    use = PlannedUse(64, sequences=2)
    assert planner.expect_peak(use) < planner.count_needed(use)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama-2-7b", "--check"), "check needs a MODEL whose weights are here"),
        (("stories", "--check", "--bits", "4"), "check needs the weights as they are"),
    ],
)
def test_what_cannot_be_measured(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got = SimpleNamespace(code=main(["plan", "memory", *words]), err=capsys.readouterr().err)
    assert got.code == 2 and said in got.err and got.err.count("\n") == 1
