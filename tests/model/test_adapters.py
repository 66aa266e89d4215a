"""LoRA adapters made by PEFT: the logits are those of transformers with each, several run in one
batch as each alone, and the prefix cache keeps them apart.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness import MODELS, decoder, logits
from random_models import Answer, answers, engine, request

from filewriters import encode, write_safetensors
from flyweight.errors import CheckpointError, RequestError
from flyweight.models.adapters import place_adapter
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.spec import Files
from flyweight.types import Request
from flyweight.validation.untrusted import read_json
from flyweight.weights.adapter import open_adapter
from flyweight.wire import Batch

ADAPTERS = Path(__file__).parents[1] / "data" / "adapters"
CASES = [(p.parent.name, p.name) for p in sorted(ADAPTERS.glob("*/*")) if p.is_dir()]


class With:
    """A model whose every sequence has adapter `index`."""

    def __init__(self, model: object, index: int) -> None:
        self.model, self.index = model, index
        self.spec, self.ops = model.spec, model.ops  # type: ignore[attr-defined]
        self.compute_logits = model.compute_logits  # type: ignore[attr-defined]

    def compute_hidden(self, batch: Batch, kv: object, rows: np.ndarray) -> np.ndarray:
        owners = np.full(len(batch.contexts), self.index, np.int32)
        return self.model.compute_hidden(replace(batch, adapters=owners), kv, rows)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "adapter"), CASES)
def test_logits_with_an_adapter(name: str, adapter: str, backend: Ops) -> None:
    expected = np.load(ADAPTERS / name / "expected.npz")
    model = decoder(MODELS / name, backend, adapters=[ADAPTERS / name / adapter])
    true = expected[f"logits {adapter}"]
    for chunk in (200, 23):
        got = logits(With(model, 0), expected["prompt"], expected["rows"], chunk=chunk)  # type: ignore[arg-type]
        assert np.abs(got - true).max() <= 1e-3
    plain = logits(model, expected["prompt"], expected["rows"])
    assert np.abs(plain - true).max() > 0.1
    assert (plain == logits(With(model, -1), expected["prompt"], expected["rows"])).all()  # type: ignore[arg-type]


def test_an_adapter_on_a_gguf_base(native: Ops, tmp_path: Path) -> None:
    """Whose heads lie in another order than the adapter's."""
    pytest.importorskip("gguf")
    from gguf_twins import twin

    for name, adapter in (("llama3", "everything"), ("gpt-neox", "fused"), ("gpt2", "turned")):
        expected = np.load(ADAPTERS / name / "expected.npz")
        file = twin(name, tmp_path / f"{name}.gguf")
        model = With(decoder(file, native, adapters=[ADAPTERS / name / adapter]), 0)
        got = logits(model, expected["prompt"], expected["rows"])  # type: ignore[arg-type]
        assert np.abs(got - expected[f"logits {adapter}"]).max() <= 1e-3


NAMES = ("everything", "queries", "own-alpha")


def requested() -> list[Request]:
    """Prompts with one beginning, by every adapter and none."""
    rng = np.random.default_rng(5)
    begin = rng.integers(3, 320, 70).tolist()
    return [
        replace(request(f"{i} {name}", [*begin, i], 20, temperature=0), adapter=name)
        for i, name in enumerate(("", *NAMES, "queries", ""))
    ]


def test_several_in_one_batch_answer_as_alone(native: Ops) -> None:
    folders = [ADAPTERS / "llama3" / name for name in NAMES]
    model = decoder(MODELS / "llama3", native, adapters=folders)

    def run(requests: list[Request], **limits: int) -> dict[tuple[str, int], Answer]:
        made = engine(model, "f32", adapters=NAMES, **limits)
        found: dict[tuple[str, int], Answer] = {}
        for _ in range(2):  # the second time with prefix hits
            found = answers(made, requests)
        return found

    alone: dict[tuple[str, int], Answer] = {}
    for r in requested():
        alone |= run([r])
    assert run(requested()) == alone
    assert run(requested(), max_num_batched_tokens=19, blocks=24) == alone
    assert len({answer.tokens for answer in alone.values()}) == len(alone)


def test_prefixes_are_kept_apart(native: Ops) -> None:
    folders = [ADAPTERS / "llama3" / name for name in NAMES]
    made = engine(decoder(MODELS / "llama3", native, adapters=folders), "f32", adapters=NAMES)
    first, *others = requested()[:4]
    answers(made, [first])
    assert made.metrics.cached == 0
    answers(made, others)
    assert made.metrics.cached == 0, "another adapter's blocks were used"
    answers(made, [replace(others[0], id="again")])
    assert made.metrics.cached > 0


def test_an_unknown_adapter_is_refused(native: Ops) -> None:
    made = engine(decoder(MODELS / "llama3", native))
    with pytest.raises(RequestError, match="adapter = 'poet' is not loaded; known: none"):
        made.add(replace(requested()[0], adapter="poet"))
    assert not made.busy


# --- files ---

CONFIGS = {
    "another kind": ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
    "DoRA": ({"use_dora": True}, "use_dora = True is not supported"),
    "biases": ({"bias": "all"}, "bias = 'all' is not supported"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "alpha a string": ({"lora_alpha": "8"}, "lora_alpha = '8'"),
    "alpha by expressions": ({"alpha_pattern": {".*q_proj": 4}}, "alpha_pattern = "),
    "alpha by nothing": ({"alpha_pattern": ["q_proj"]}, "alpha_pattern = "),
    "blocks": ({"use_bdlora": {"nblocks": 2}}, "use_bdlora = "),
    "other base weights": ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights = 'pissa"),
    "alpha infinite": ({"lora_alpha": 1e300}, "lora_alpha = 1e"),
}


@pytest.mark.parametrize("fault", CONFIGS)
def test_configs_that_cannot_be_supported(fault: str, tmp_path: Path) -> None:
    change, message = CONFIGS[fault]
    folder = shutil.copytree(ADAPTERS / "llama3" / "queries", tmp_path / "a")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=message):
        open_adapter(folder)


Q = "base_model.model.model.layers.0.self_attn.q_proj"
TENSORS: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "half a pair": ({f"{Q}.lora_A.weight": (4, 64)}, "has only lora_A"),
    "ranks differ": (
        {f"{Q}.lora_A.weight": (4, 64), f"{Q}.lora_B.weight": (128, 3)}, r"\[r, K\]"
    ),
    "no rank": ({f"{Q}.lora_A.weight": (0, 64), f"{Q}.lora_B.weight": (128, 0)}, r"\[r, K\]"),
    "an embedding": (
        {"base_model.model.model.embed_tokens.lora_embedding_A": (4, 320)}, "neither lora_A"
    ),
    "another size": (
        {f"{Q}.lora_A.weight": (4, 65), f"{Q}.lora_B.weight": (128, 4)}, "the model's is"
    ),
    "a module that is not there": (
        {f"{Q}x.lora_A.weight": (4, 64), f"{Q}x.lora_B.weight": (128, 4)}, "cannot be adapted"
    ),
    "the head": (
        {
            "base_model.model.lm_head.lora_A.weight": (4, 64),
            "base_model.model.lm_head.lora_B.weight": (320, 4),
        },
        "cannot be adapted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", TENSORS)
def test_tensors_that_do_not_fit(fault: str, tmp_path: Path) -> None:
    shapes, message = TENSORS[fault]
    folder = shutil.copytree(ADAPTERS / "llama3" / "queries", tmp_path / "a")
    tensors = {name: encode(np.zeros(shape), "f32") for name, shape in shapes.items()}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    config = read_json(MODELS / "llama3" / "config.json")
    kind = find_family(config)
    with pytest.raises(CheckpointError, match=message):
        place_adapter(open_adapter(folder), kind.plan(kind.read_spec(config), Files()))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_model_with_pictures_names_its_text_otherwise(prefix: str, tmp_path: Path) -> None:
    folder = shutil.copytree(ADAPTERS / "llama3" / "queries", tmp_path / "a")
    layer, shape = "layers.0.self_attn.q_proj", {"A": (4, 64), "B": (96, 4)}
    tensors = {
        f"base_model.model.{prefix}{layer}.lora_{side}.weight": encode(np.ones(shape[side]), "f32")
        for side in "AB"
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    kind = find_family({"model_type": "gemma3"})
    spec = kind.read_spec({"text_config": read_json(MODELS / "gemma3" / "config.json")})
    assert [*place_adapter(open_adapter(folder), kind.plan(spec, Files()))] == ["layers.0.qkv"]
    for own in (prefix, "^" + prefix):  # patterns name it as the file does
        config = {"peft_type": "LORA", "lora_alpha": 4, "alpha_pattern": {own + layer: 12}}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        assert [pair.scale for pair in open_adapter(folder).pairs.values()] == [3.0]
    again = {
        f"base_model.model.model.{layer}.lora_{side}.weight": tensors[name]
        for side, name in zip("AB", tensors, strict=True)
    }
    write_safetensors(folder / "adapter_model.safetensors", tensors | again)
    with pytest.raises(CheckpointError, match="two tensors are lora_A"):
        open_adapter(folder)


def test_matrices_that_are_none(tmp_path: Path) -> None:
    """Answers would be the base model's, or NaN."""
    folder = shutil.copytree(ADAPTERS / "llama3" / "queries", tmp_path / "a")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    up, down = np.ones((64, 4)), np.ones((4, 64))
    up[3, 1] = np.nan
    tensors = {name.format("A"): encode(down, "f32"), name.format("B"): encode(up, "f32")}
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (pair,) = open_adapter(folder).pairs.values()
    assert (pair.read_down() == 1).all()
    with pytest.raises(CheckpointError, match=r"lora_B.weight' holds NaN or infinity"):
        pair.read_up()
    write_safetensors(folder / "adapter_model.safetensors", {})
    with pytest.raises(CheckpointError, match="no lora_A and lora_B of any module"):
        open_adapter(folder)


def test_single_experts_cannot_be_adapted(tmp_path: Path) -> None:
    """Their matrices are in the plan, but no adapter would run next to them."""
    folder = shutil.copytree(ADAPTERS / "llama3" / "queries", tmp_path / "a")
    config = read_json(MODELS / "mixtral" / "config.json")
    kind = find_family(config)
    plan = kind.plan(kind.read_spec(config), Files())
    for module, rows in (("experts.0.w1", config["intermediate_size"]), ("gate", 5)):
        name = f"base_model.model.model.layers.0.block_sparse_moe.{module}"
        shapes = {f"{name}.lora_A.weight": (4, 64), f"{name}.lora_B.weight": (rows, 4)}
        tensors = {key: encode(np.zeros(shape), "f32") for key, shape in shapes.items()}
        write_safetensors(folder / "adapter_model.safetensors", tensors)
        with pytest.raises(CheckpointError, match="cannot be adapted"):
            place_adapter(open_adapter(folder), plan)


def test_folders_that_are_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json"):
        open_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickle.*safe_serialization=True"):
        open_adapter(tmp_path)
