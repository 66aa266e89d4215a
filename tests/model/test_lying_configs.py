"""Every key of every config given every kind of value: a spec and its plans, or a line of error."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_twins import metadata, twin
from harness import MODELS

from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.spec import Files
from flyweight.validation.untrusted import read_json
from flyweight.weights import gguf_config
from flyweight.weights.checkpoint import open_checkpoint

WILD: list[Any] = [
    None, True, False, 0, -1, 3, 1 << 20, 1 << 31, 10**400, -0.5, 1e-30, 1e29, 1e300, {},
    float("nan"), float("inf"), "", "false", "3", "\x1b[2J\n", [], [[]], [1e29] * 6, [0] * 6,
    [None], {"rope_type": []}, {"rope_type": "yarn"}, {"rope_type": "longrope"},
    {"rope_type": "dynamic", "factor": 1e29}, {"full_attention": 1}, {"type": "linear"},
]  # fmt: skip
UNSAID = (
    "attention_bias", "head_dim", "layer_types", "mlp_only_layers", "no_rope_layers",
    "partial_rotary_factor", "quantization_config", "rope_parameters", "rope_scaling",
    "rope_theta", "sliding_window", "sliding_window_pattern", "text_config",
)  # fmt: skip


def places(config: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every key, also those of objects inside."""
    for key, value in config.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from places(value, (*at, key))


@pytest.mark.parametrize("name", sorted(p.name for p in MODELS.iterdir()))
def test_every_key_given_every_kind_of_value(name: str) -> None:
    """A spec and its plans, or an error of one line; never another exception, nor much memory."""
    config = read_json(MODELS / name / "config.json")
    refused = 0
    for way in (*places(config), *((key,) for key in UNSAID if key not in config)):
        for value in WILD:
            changed = deepcopy(config)
            inner = changed
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = value
            try:
                kind = find_family(changed)
                spec = kind.read_spec(changed)
                for converted in (False, True):
                    kind.plan(spec, Files(converted))
            except CheckpointError as error:
                refused += 1
                assert str(error).isprintable() and len(str(error)) < 500
    assert refused > 100


ODD: list[object] = [
    "x", "", True, False, 0, 1, 7, 1 << 20, 0xFFFFFFFF, 0.5, -1.0, 1e30, float("nan"), float("inf"),
    np.array([1, 2], np.int32), np.array([], np.int32), np.array([2.5] * 3), np.array([True] * 3),
    ["a"], ["a", "b", "c"], [],
]  # fmt: skip
UNSAID_KEYS = (
    "rope.scaling.type", "rope.scaling.factor", "expert_count", "expert_gating_func",
    "attention.sliding_window", "attention.sliding_window_pattern", "leading_dense_block_count",
    "rope.dimension_count", "attention.key_length_mla",
)  # fmt: skip


LYING = [
    "deepseek-v2", "deepseek-v3", "gemma3", "gpt-oss", "granite", "llama4-scout", "phi4-longrope",
]  # fmt: skip


@pytest.mark.parametrize("name", LYING)
def test_every_gguf_key_given_every_kind_of_value(name: str, tmp_path: Path) -> None:
    """As above, of what a GGUF file says of its architecture."""
    source = open_checkpoint(twin(name, tmp_path / "m.gguf"))
    true = metadata(read_json(MODELS / name / "config.json"))
    spans, refused = source._gguf.spans, 0  # type: ignore[attr-defined]
    arch = true["general.architecture"]
    for key in {*true, *(f"{arch}.{unsaid}" for unsaid in UNSAID_KEYS)}:
        for value in ODD:
            try:
                config = gguf_config.make_hf_config(true | {key: value}, spans, "m.gguf")
                kind = find_family(config)
                kind.plan(kind.read_spec(config), Files(True, frozenset(source.tensors)))
            except CheckpointError as error:
                refused += 1
                assert str(error).isprintable() and len(str(error)) < 500
    source.close()
    assert refused > 100


@pytest.mark.parametrize("first", [0, 1, 2])
def test_deepseek_may_have_experts_from_the_first_layer_on(first: int) -> None:
    config = read_json(MODELS / "deepseek-v2" / "config.json") | {"first_k_dense_replace": first}
    layers = find_family(config).read_spec(config).layers
    assert [layer.moe is None for layer in layers] == [i < first for i in range(len(layers))]


@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v2"])
def test_a_plan_is_not_sized_by_a_false_value(model_type: str) -> None:
    name = {"mixtral": "mixtral", "deepseek_v2": "deepseek-v2"}[model_type]
    config = read_json(MODELS / name / "config.json")
    lies = {"num_local_experts": 1 << 20, "n_routed_experts": 1 << 20, "num_hidden_layers": 1024}
    kind = find_family(config)
    with pytest.raises(CheckpointError, match=r"experts and .* in 1024 layers; at most 32768"):
        kind.plan(kind.read_spec(config | lies), Files())
