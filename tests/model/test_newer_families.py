"""The families of 2024 and 2025: what sets each apart is felt, published configs read as those
transformers writes, and checkpoints under other names load.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_twins import metadata
from harness import MODELS, decoder, logits
from test_features import FELT, PLAIN_ROPE, layers, moved

from filewriters import encode, write_folder
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops, from_bf16_bits
from flyweight.spec import ModelSpec
from flyweight.validation.untrusted import read_json
from flyweight.weights import gguf_config
from flyweight.weights.checkpoint import open_checkpoint

SLIDING, FULL = "sliding_attention", "full_attention"
OLMO3_BASE = {"rope_type": "default", "rope_theta": 20000.0}


def config_of(name: str) -> dict[str, Any]:
    return read_json(MODELS / name / "config.json")


def spec_of(config: dict[str, Any]) -> ModelSpec:
    return find_family(config).read_spec(config)


def tensors_of(name: str) -> dict[str, np.ndarray]:
    """A bfloat16 fixture's tensors, as float32."""
    source = open_checkpoint(MODELS / name)
    found = {}
    for key, info in source.tensors.items():
        rows = info.shape[0] if len(info.shape) == 1 else int(np.prod(info.shape[:-1]))
        bits: Any = source.read(key, 0, rows)
        found[key] = from_bf16_bits(bits).reshape(info.shape)
    source.close()
    return found


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo3's window": ("olmo3", {"sliding_window": 264}),
    "olmo3's pattern": (
        "olmo3", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
    ),
    "olmo3's yarn on the full layers": (
        "olmo3",
        {"rope_parameters": {
            "full_attention": OLMO3_BASE, "sliding_attention": OLMO3_BASE}},
    ),
    "olmo3's plain rope on the others": (
        "olmo3",
        {"rope_parameters": dict.fromkeys(
            ("full_attention", "sliding_attention"),
            read_json(MODELS / "olmo3" / "config.json")["rope_parameters"]["full_attention"],
        )},
    ),
    "how much of glm's heads turns": (
        "glm",
        {"rope_parameters": {
            "rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 1.0}},
    ),
    "cohere's logits": ("cohere", {"logit_scale": 1.0}),
    "cohere2's window": ("cohere2", {"sliding_window": 264}),
    "cohere2's pattern": ("cohere2", {"layer_types": None, "sliding_window_pattern": 3}),
    "exaone's activation": ("exaone", {"activation_function": "gelu"}),
    "exaone's rope": ("exaone", {"rope_parameters": PLAIN_ROPE}),
    "exaone4's window": ("exaone4", {"sliding_window": 264}),
    "exaone4's pattern": ("exaone4", {"layer_types": None, "sliding_window_pattern": "LGG"}),
    "exaone4's positions on some layers": ("exaone4", {"sliding_window": None}),
    "minicpm's embedding": ("minicpm", {"scale_emb": 1}),
    "minicpm's residual": ("minicpm", {"scale_depth": 3**0.5}),
    "minicpm's logits": ("minicpm", {"dim_model_base": 64}),
    "minicpm's longrope": ("minicpm", {"rope_parameters": PLAIN_ROPE}),
    "phi4-multimodal's longrope": (
        "phi4-multimodal",
        {"rope_parameters": {**PLAIN_ROPE, "partial_rotary_factor": 0.75}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("feature", CONFIGS)
def test_config_setting_changes_the_logits(feature: str, native: Ops) -> None:
    name, config = CONFIGS[feature]
    assert moved(name, native, config=config) > FELT


SPECS: dict[str, tuple[str, Any]] = {
    "olmo3's norms of all heads": ("olmo3", layers(qk_norm="")),
    "exaone4's head norms": ("exaone4", layers(qk_norm="")),
    "cohere2's layers without positions": ("cohere2", layers(rope=0)),
    "exaone4's layers without positions": ("exaone4", layers(rope=0)),
    "command-r+'s head norms": ("cohere-plus", layers(qk_norm="")),
    "blocks of one norm": ("cohere", lambda s: replace(s, parallel=False)),
}


@pytest.mark.parametrize("feature", SPECS)
def test_spec_field_changes_the_logits(feature: str, native: Ops) -> None:
    name, change = SPECS[feature]
    assert moved(name, native, change=change) > FELT


# --- published configs ---


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


PUBLISHED_WORDS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    # what a published config.json leaves out, and what it says instead
    "olmo3": (
        "olmo3",
        ("rope_parameters",),
        {
            "rope_theta": 20000,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 66,
                "attention_factor": 1.138629436111989,
            },
        },
    ),
    "olmo3, flat rope_parameters": (
        "olmo3",
        ("rope_parameters",),
        {"rope_parameters": config_of("olmo3")["rope_parameters"][FULL]},
    ),
    "glm": ("glm", ("rope_parameters",), {"rope_theta": 20000.0, "partial_rotary_factor": 0.5}),
    "glm4, usual part": ("glm4", ("rope_parameters",), {"rope_theta": 10000.0}),
    "cohere2": (
        "cohere2", ("layer_types",), {"sliding_window_pattern": 4, "rope_scaling": None}
    ),
    "cohere2, usual pattern": ("cohere2", ("layer_types", "tie_word_embeddings"), {}),
    "exaone4": (
        "exaone4",
        ("layer_types", "rope_parameters"),
        {
            "sliding_window_pattern": "LLG",
            "rope_theta": 5000,
            "rope_scaling": without(config_of("exaone4")["rope_parameters"], "rope_theta"),
        },
    ),
    "minicpm": (
        "minicpm",
        ("rope_parameters",),
        {"rope_scaling": without(config_of("minicpm")["rope_parameters"], "rope_theta")},
    ),
    "phi4-multimodal": (
        "phi4-multimodal",
        ("rope_parameters", "vision_config", "audio_config"),
        {
            "model_type": "phi4mm",
            "partial_rotary_factor": 0.75,
            "rope_scaling": {
                "type": "longrope",
                **{
                    key: config_of("phi4-multimodal")["rope_parameters"][key]
                    for key in ("short_factor", "long_factor")
                },
            },
            "attention_bias": False, "mlp_bias": False, "lm_head_bias": False,
            "embd_layer": {}, "vision_lora": {"r": 256}, "speech_lora": {"r": 320},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHED_WORDS)
def test_published_config_equals_that_of_transformers(case: str) -> None:
    name, dropped, said = PUBLISHED_WORDS[case]
    config = config_of(name)
    assert spec_of({**without(config, *dropped), **said}) == spec_of(config)


def test_exaone4_without_a_window_rotates_every_layer() -> None:
    for config in ({}, {"layer_types": [FULL] * 3, "sliding_window_pattern": None}):
        found = spec_of({**config_of("exaone4"), "sliding_window": None, **config})
        assert [(x.rope, x.kv.window) for x in found.layers] == [(0, 0)] * 3


def test_exaone4_last_layer_of_a_pattern_of_letters_is_global() -> None:
    config = {**without(config_of("exaone4"), "layer_types"), "sliding_window_pattern": "LGL"}
    found = spec_of(config)
    assert [x.kv.window for x in found.layers] == [35, 0, 0]
    assert [x.rope for x in found.layers] == [0, None, None]


def test_cohere_context_is_model_max_length() -> None:
    config = {**config_of("cohere"), "max_position_embeddings": 8192}
    assert spec_of(config).context == 8192
    assert spec_of({**config, "model_max_length": 131072}).context == 131072


def test_minicpm_config_may_lack_a_model_type(native: Ops) -> None:
    """MiniCPM 4 is published with architectures alone."""
    config = without(config_of("minicpm"), "model_type")
    with pytest.raises(CheckpointError, match="model_type = None is not supported"):
        find_family(config)
    named = {**config, "architectures": ["MiniCPMForCausalLM"]}
    assert spec_of(named) == spec_of(config_of("minicpm"))


REFUSED = {
    "mixture of experts": ("minicpm", {"num_experts": 8}, "num_experts = 8"),
    "sparse attention": ("minicpm", {"sparse_config": {"topk": 64}}, "sparse_config"),
    "biased head": ("phi4-multimodal", {"lm_head_bias": True}, "lm_head_bias"),
    "pattern": ("exaone4", {"layer_types": None, "sliding_window_pattern": "LX"}, "L and G"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_setting_is_refused_by_name(case: str) -> None:
    name, config, said = REFUSED[case]
    with pytest.raises(CheckpointError, match=said):
        spec_of({**config_of(name), **config})


# --- checkpoints under other names ---


def same_logits(name: str, folder: Path, native: Ops) -> None:
    expected = np.load(MODELS / name / "expected.npz")
    model = decoder(folder, native, length=int(expected["length"]))
    got = logits(model, expected["prompt"], expected["rows"])
    assert np.abs(got - expected["logits"]).max() < 1e-3


def test_glm_with_q_k_and_v_in_one_matrix(native: Ops, tmp_path: Path) -> None:
    """GGUF files made from the first GLM-4's own code (chatglm) have attn_qkv."""
    arrays = tensors_of("glm")
    for part in ("weight", "bias"):
        for i in range(2):
            at = f"model.layers.{i}.self_attn."
            parts = [arrays.pop(f"{at}{x}_proj.{part}") for x in "qkv"]
            arrays[f"{at}qkv_proj.{part}"] = np.concatenate(parts)
    tensors = {key: encode(x, "bf16") for key, x in arrays.items()}
    same_logits("glm", write_folder(tmp_path, config_of("glm"), tensors), native)


def test_phi4_multimodal_as_published(native: Ops, tmp_path: Path) -> None:
    """Adapters lie next to the matrices; they and the encoders are left alone."""
    tensors = {}
    for key, x in tensors_of("phi4-multimodal").items():
        if ".layers." in key and "_proj." in key and "embed_tokens_extend" not in key:
            module = key.removesuffix(".weight")
            for adapter in ("vision", "speech"):
                for matrix, shape in (("A", (2, x.shape[1])), ("B", (x.shape[0], 2))):
                    values = np.full(shape, 9.0)
                    tensors[f"{module}.lora_{matrix}.{adapter}.weight"] = encode(values, "bf16")
            key = f"{module}.base_layer.weight"
        tensors[key] = encode(x, "bf16")
    config = {**config_of("phi4-multimodal"), "model_type": "phi4mm"}
    assert sum("base_layer" in key for key in tensors) == 8
    assert any("embed_tokens_extend" in key for key in tensors)
    same_logits("phi4-multimodal", write_folder(tmp_path, config, tensors), native)


# --- GGUF ---


def translated(name: str, *tensors: str, **others: object) -> dict[str, Any]:
    """The config of a GGUF file with a fixture's metadata and these tensors; a key that is None is
    left out.
    """
    keys = {k: v for k, v in {**metadata(config_of(name)), **others}.items() if v is not None}
    spans: Any = dict.fromkeys(tensors)
    return gguf_config.make_hf_config({**keys, "tokenizer.ggml.tokens": ["a"]}, spans, "m.gguf")


def test_olmo2_file_with_a_window_is_olmo3() -> None:
    assert translated("olmo2")["model_type"] == "olmo2"
    assert translated("olmo3")["model_type"] == "olmo3"


def test_old_minicpm_file_has_the_usual_multipliers() -> None:
    keys = ("embedding_scale", "residual_scale", "logit_scale")
    old = translated("minicpm", **{f"minicpm.{key}": None for key in keys})
    found = spec_of({**old, "rope_scaling": None})
    assert found.embed_scale == 12
    assert found.residual_scale == pytest.approx(1.4 / 2**0.5)
    assert found.logit_scale == pytest.approx(256 / 32)


def test_glm4_file_of_a_model_that_sees_is_refused() -> None:
    """Its q and k are in another order."""
    with pytest.raises(CheckpointError, match=r"glm4\.rope\.dimension_sections"):
        translated("glm4", **{"glm4.rope.dimension_sections": np.array([8, 12, 12, 0])})


def test_seed_oss_file_says_by_its_tensors_which_matrices_are_biased() -> None:
    for biased in ((), ("attn_q",), ("attn_q", "attn_output"), ("ffn_down",)):
        found = translated("seed-oss", *(f"blk.0.{name}.bias" for name in biased))
        layer = spec_of(found).layers[0]
        said = (layer.attn_bias, layer.out_bias, layer.mlp_bias)
        assert said == tuple(x in biased for x in ("attn_q", "attn_output", "ffn_down"))
