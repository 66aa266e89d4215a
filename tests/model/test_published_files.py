"""Tensors and keys that published files hold next to what a model needs, in files of fixtures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_twins import metadata, twin
from harness import MODELS, decoder, logits

from filewriters import encode, write_folder, write_gguf
from flyweight.errors import CheckpointError
from flyweight.models.registry import find_family
from flyweight.ops.base import Ops
from flyweight.spec import Files
from flyweight.validation.untrusted import read_json
from flyweight.weights import gguf_config
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats.values import to_f32
from flyweight.weights.gguf import read_gguf
from flyweight.weights.survey import find_value_faults

OLD_GEMMA3 = {  # what transformers 4 called the rope of the fixture
    "rope_theta": 50000.0,
    "rope_local_base_freq": 1000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def tensors_of(name: str) -> dict[str, Any]:
    source = open_checkpoint(MODELS / name)
    found = {
        key: encode(np.asarray(to_f32(source.read(key, 0, info.shape[0]))), "f32")
        for key, info in source.tensors.items()
    }
    source.close()
    return found


def same(name: str, folder: Path, ops: Ops) -> bool:
    """Whether the model in a folder answers as the fixture does."""
    expected = np.load(MODELS / name / "expected.npz")
    got = logits(decoder(folder, ops), expected["prompt"], expected["rows"])
    return bool(np.abs(got - expected["logits"]).max() < 1e-3)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_gemma_that_sees_pictures(prefix: str, native: Ops, tmp_path: Path) -> None:
    config = read_json(MODELS / "gemma3" / "config.json")
    del config["rope_parameters"]
    tensors = {prefix + k.removeprefix("model."): v for k, v in tensors_of("gemma3").items()}
    for other in ("vision_tower.embeddings.patch.weight", "multi_modal_projector.mm_weight"):
        tensors[other] = encode(np.ones((2, 2)), "f32")
    whole = {"model_type": "gemma3", "text_config": config | OLD_GEMMA3, "vision_config": {}}
    write_folder(tmp_path, whole, tensors)
    assert same("gemma3", tmp_path, native)


def test_the_masks_of_older_files_are_passed_over(native: Ops, tmp_path: Path) -> None:
    """Truth values, a single number and frequencies, as Pythia's files hold them."""
    tensors = tensors_of("gpt-neox")
    at = "gpt_neox.layers.0.attention."
    tensors |= {
        at + "bias": ("bool", (1, 1, 8, 8), bytes(64)),
        at + "masked_bias": encode(np.array(-np.inf), "f32"),
        at + "rotary_emb.inv_freq": encode(np.ones(2), "f32"),
    }
    config = read_json(MODELS / "gpt-neox" / "config.json")
    write_folder(tmp_path, config, tensors)
    assert same("gpt-neox", tmp_path, native)
    checkpoint, kind = open_checkpoint(tmp_path), find_family(config)
    files = Files(False, frozenset(checkpoint.tensors))
    assert not list(
        find_value_faults(checkpoint, None, kind.plan(kind.read_spec(config), files).ignored)
    )
    tensors["gpt_neox.final_layer_norm.weight"] = ("bool", (64,), bytes(64))
    write_folder(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"final_layer_norm.weight' holds bytes"):
        decoder(tmp_path, native)


def test_what_files_say_to_mean_nothing(native: Ops, tmp_path: Path) -> None:
    """Zeros for what is off, and keys that go with no rope scaling."""
    for name, arch, other in (
        ("llama3", "llama", {"rope.scaling.original_context_length": 64, "expert_count": 0}),
        ("llama1", "llama", {"attention.scale": 0.0, "expert_used_count": 0, "logit_scale": 0.0}),
        ("deepseek-v2-lite", "deepseek2", {"expert_gating_func": 1, "expert_group_count": 1}),
    ):
        keys = {f"{arch}.{key}": value for key, value in other.items()}
        path = tmp_path / f"{name}.gguf"
        twin(name, path, keys)
        expected = np.load(MODELS / name / "expected.npz")
        got = logits(decoder(path, native), expected["prompt"], expected["rows"])
        assert np.abs(got - expected["logits"]).max() < 1e-3
    for name, arch, function in (("qwen3-moe", "qwen3moe", 2), ("deepseek-v2", "deepseek2", 4)):
        other = twin(name, tmp_path / "other.gguf", {f"{arch}.expert_gating_func": function})
        with pytest.raises(CheckpointError, match=f"expert_gating_func = {function}; only softmax"):
            open_checkpoint(other)


def test_deepseek_v3_files_from_before_groups_were_said() -> None:
    """The 256 experts of V3 and R1 lie in 8 groups, whatever their files leave out."""
    meta = metadata(read_json(MODELS / "deepseek-v3" / "config.json"))
    meta = {k: v for k, v in meta.items() if "expert_group" not in k} | {"deepseek2.vocab_size": 9}
    for experts, groups, kept in ((256, 8, 4), (384, 1, 1)):
        said = meta | {"deepseek2.expert_count": experts}
        config = gguf_config.make_hf_config(said, {}, "m.gguf")
        moe = find_family(config).read_spec(config).layers[-1].moe
        assert moe is not None and moe.route.corrected
        assert (moe.route.scoring, moe.route.groups, moe.route.kept) == ("sigmoid", groups, kept)


def test_the_layer_that_predicts_a_second_token_is_not_read(native: Ops, tmp_path: Path) -> None:
    """DeepSeek-V3 publishes it after the last layer; another layer there is an error."""
    tensors, config = tensors_of("deepseek-v3"), read_json(MODELS / "deepseek-v3" / "config.json")
    config["num_nextn_predict_layers"] = 1
    tensors["model.layers.3.mlp.gate.weight"] = encode(np.ones((4, 4)), "f32")
    write_folder(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match=r"model.layers.3.mlp.gate.weight"):
        decoder(tmp_path, native)
    tensors["model.layers.3.eh_proj.weight"] = encode(np.ones((4, 4)), "f32")
    write_folder(tmp_path, config, tensors)
    assert same("deepseek-v3", tmp_path, native)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2", "llama4"])
def test_methods_that_are_not_read_are_refused_by_name(model_type: str) -> None:
    config = {"model_type": model_type, "quantization_config": {"quant_method": "quark"}}
    with pytest.raises(CheckpointError, match=r"quant_method = 'quark' is not supported; known: "):
        find_family(config)


def test_latents_whose_queries_have_a_temperature_are_refused() -> None:
    meta = metadata(read_json(MODELS / "deepseek-v3" / "config.json")) | {"deepseek2.vocab_size": 9}
    meta["deepseek2.attention.temperature_scale"] = 0.1
    with pytest.raises(CheckpointError, match=r"attention.temperature_scale = 0.1; latent"):
        gguf_config.make_hf_config(meta, {}, "m.gguf")


def test_what_files_of_llama4_leave_out() -> None:
    """Maverick has 128 experts and no head norms; a window of 0 is another model."""
    meta = metadata(read_json(MODELS / "llama4-scout" / "config.json")) | {"llama4.vocab_size": 9}
    for experts, norm in ((16, "unit"), (128, "")):
        config = gguf_config.make_hf_config(meta | {"llama4.expert_count": experts}, {}, "m.gguf")
        layers = find_family(config).read_spec(config).layers
        assert [x.qk_norm for x in layers] == [norm, norm, norm, ""]
        assert [x.kv.chunk for x in layers] == [8192, 8192, 8192, 0]
    with pytest.raises(CheckpointError, match=r"llama4.attention.sliding_window = 0; chunked"):
        gguf_config.make_hf_config(meta | {"llama4.attention.sliding_window": 0}, {}, "m.gguf")


def test_deepseek_files_from_before_the_matrices_were_parted(native: Ops, tmp_path: Path) -> None:
    """kv_b whole, and the sizes of whole heads under the plain keys."""
    name = "deepseek-v2-lite"
    config = read_json(MODELS / name / "config.json")
    whole = tensors_of(name)
    parted = read_gguf(twin(name, tmp_path / "m.gguf"))
    tensors = {}
    for key, span in parted.spans.items():
        layer, _, part = key.rpartition(".attn_")
        if part == "k_b.weight":
            of = layer.replace("blk", "model.layers")
            tensors[f"{layer}.attn_kv_b.weight"] = whole[f"{of}.self_attn.kv_b_proj.weight"]
        elif part != "v_b.weight":
            rows = int(np.prod(span.shape[:-1])) if len(span.shape) > 1 else span.shape[0]
            values = np.asarray(to_f32(parted.file.read_rows(key, span, 0, rows)))
            tensors[key] = encode(values.reshape(span.shape), "f32")
    at, meta = "deepseek2.attention.", metadata(config)
    meta = {k: v for k, v in meta.items() if not k.endswith("_length_mla")}
    meta[f"{at}head_count_kv"] = config["num_attention_heads"]
    meta[f"{at}key_length"] = config["qk_rope_head_dim"] + config["qk_nope_head_dim"]
    meta[f"{at}value_length"] = config["v_head_dim"]
    assert same(name, write_gguf(tmp_path / "old.gguf", meta, tensors), native)


def test_gemma3_without_a_window_has_one_rope() -> None:
    """Converters leave the window out where every layer sees everything."""
    for window in ({}, {"gemma3.attention.sliding_window": 33}):
        meta = metadata(read_json(MODELS / "gemma3" / "config.json"))
        kept = {k: v for k, v in meta.items() if "sliding_window" not in k} | {
            "gemma3.vocab_size": 9
        }
        config = gguf_config.make_hf_config(kept | window, {}, "m.gguf")
        layers = find_family(config).read_spec(config | {"num_hidden_layers": 12}).layers
        near = [bool(window) and (i + 1) % 6 != 0 for i in range(12)]
        assert [layer.rope == 1 for layer in layers] == near
        assert [layer.kv.window for layer in layers] == [33 if n else 0 for n in near]
