"""Every fixture again as one GGUF file, as the published converters leave it: names from the `gguf`
package's own maps, rows and values changed where converters change them.

Written from what the format's users agree on, not from our reader, so that one checks the other.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from harness import MODELS

from filewriters import Tensor, encode, write_gguf
from flyweight.ops.grouped import GroupedWeight
from flyweight.weights.checkpoint import open_checkpoint
from flyweight.weights.formats.values import to_f32

ARCH = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "glm": gguf.MODEL_ARCH.CHATGLM,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "exaone": gguf.MODEL_ARCH.EXAONE,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "minicpm": gguf.MODEL_ARCH.MINICPM,
    "phi4_multimodal": gguf.MODEL_ARCH.PHI3,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "kimi_k2": gguf.MODEL_ARCH.DEEPSEEK2,
    "llama4_text": gguf.MODEL_ARCH.LLAMA4,
}
# What no GGUF says, and why
NO_TWIN = {
    **dict.fromkeys(("opt", "opt-odd", "opt-350m"), "the gguf package has no such architecture"),
    "llama-dynamic": "GGUF has no dynamic rope scaling",
    "gemma2-scalar": "no key for query_pre_attn_scalar: it is the head's size in all but the 27B",
    "llama4": "no keys for the chunk, the layers without positions and the queries' factors",
    "qwen3-moe-step": "the gguf package has no names for MLPs beside experts",
}
TURNED = (
    "llama",
    "mistral",
    "mixtral",
    "granite",
    "smollm3",
    "minicpm",
)  # q and k in interleaved rope order
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
HEAD = re.compile(r"(.*\.[qk]_layernorm)\.norms\.(\d+)\.weight")
Arrays = dict[str, np.ndarray]


def twins() -> list[str]:
    """Names of the fixtures that have one."""
    return [n for n in sorted(p.name for p in MODELS.iterdir()) if n not in NO_TWIN]


def twin(name: str, path: Path, other: dict[str, object] | None = None) -> Path:
    """Writes a fixture as a GGUF file, matrices in their own type; `other` metadata takes the place
    of what is right.
    """
    source = open_checkpoint(MODELS / name)
    config = json.loads((MODELS / name / "config.json").read_text())
    dtype = next(i.kind for i in source.tensors.values() if len(i.shape) == 2)
    arrays: Arrays = {
        key: dense(source.read(key, 0, int(np.prod(info.shape[:-1])) if len(info.shape) > 1
                                else info.shape[0])).reshape(info.shape)
        for key, info in source.tensors.items()
    }  # fmt: skip
    packed = any(info.kind == "mxfp4" for info in source.tensors.values())
    source.close()
    names = gguf.get_tensor_name_map(ARCH[config["model_type"]], config.get("num_hidden_layers", 9))
    tensors = {}
    for key, values in converted(arrays, config):
        known = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert known is not None, f"the gguf package has no name for {key}"
        if known.endswith("attn_sinks"):
            known += ".weight"
        kind = dtype if values.ndim > 1 and not known.endswith("_norm.weight") else "f32"
        kind = "mxfp4" if kind != "f32" and "_exps.weight" in known and packed else kind
        tensors[known] = mxfp4(values) if kind == "mxfp4" else encode(values, kind)
    for key, values in rope_tensors(config).items():
        tensors[key] = encode(values, "f32")
    return write_gguf(path, metadata(config) | (other or {}), tensors)


def dense(rows: Any) -> np.ndarray:
    return rows.dequantize() if isinstance(rows, GroupedWeight) else to_f32(rows)


def mxfp4(values: np.ndarray) -> Tensor:
    """Values that MXFP4 can hold, in its blocks, exactly."""
    kind = gguf.GGMLQuantizationType.MXFP4
    raw = gguf.quants.quantize(np.ascontiguousarray(values), kind)
    assert (gguf.quants.dequantize(raw, kind) == values).all()
    return "mxfp4", values.shape, raw.tobytes()


def converted(arrays: Arrays, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors as converters change them."""
    kind, heads = config["model_type"], config.get("num_attention_heads", config.get("n_head"))
    turned = {"q_proj": heads, "k_proj": config.get("num_key_value_heads", heads)}
    for key, x in {**arrays, **stacked(arrays)}.items():
        part = key.split(".")[-2] if "." in key else key
        if EXPERT.fullmatch(key) or HEAD.fullmatch(key) or "embed_tokens_extend" in key:
            continue
        if kind in TURNED and part in turned:
            x = interleaved(x, turned[part])
        if kind.startswith("gemma") and key.endswith("norm.weight"):
            x = x + np.float32(1)
        if kind == "gpt2" and part in ("c_attn", "c_proj", "c_fc") and x.ndim == 2:
            x = x.T
        if kind == "gpt_neox" and part == "query_key_value":
            x = x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        if kind == "gpt_oss" and ".experts." in key:
            yield from gpt_oss(key, x)
        elif kind == "llama4_text" and ".experts." in key:
            yield from llama4(key, x.swapaxes(1, 2))
        elif part == "gate" and key.endswith("e_score_correction_bias"):
            yield key.replace("correction_bias", "correction.bias"), x
        elif part == "kv_b_proj":
            yield from absorbed(key, x, config)
        else:
            yield key, x


def stacked(arrays: Arrays) -> Arrays:
    """The experts' matrices of every layer, and StableLM's head norms, as one array each."""
    found: dict[str, list[np.ndarray]] = {}
    for key in sorted(arrays, key=lambda k: (len(k), k)):
        expert = EXPERT.fullmatch(key)
        if expert:
            found.setdefault(f"{expert[1]}.{expert[3]}.weight", []).append(arrays[key])
        if head := HEAD.fullmatch(key):
            found.setdefault(f"{head[1]}.weight", []).append(arrays[key])
    return {key: np.stack(parts) for key, parts in found.items()}


def gpt_oss(key: str, x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Gate and up apart, matrices as [out, in]."""
    bias = key.endswith("_bias")
    part = ".bias" if bias else ".weight"
    if not bias and not key.endswith("_blocks"):
        x = x.swapaxes(1, 2)
    name = key.removesuffix("_bias").removesuffix("_blocks")
    if name.endswith("gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        yield f"{stem}gate_proj{part}", x[:, ::2]
        yield f"{stem}up_proj{part}", x[:, 1::2]
    else:
        yield f"{name}{part}", x


def llama4(key: str, x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Gate and up apart, of [E, out, in]."""
    if key.endswith("gate_up_proj"):
        stem = key.removesuffix("gate_up_proj")
        half = x.shape[1] // 2
        yield f"{stem}gate_proj.weight", x[:, :half]
        yield f"{stem}up_proj.weight", x[:, half:]
    else:
        yield f"{key}.weight", x


def absorbed(key: str, x: np.ndarray, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """DeepSeek's way out of the latent, for keys transposed, for values as it is."""
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    parts = x.reshape(config["num_attention_heads"], plain + value, -1)
    yield key.replace("kv_b_proj", "k_b_proj"), parts[:, :plain].swapaxes(1, 2)
    yield key.replace("kv_b_proj", "v_b_proj"), parts[:, plain:]


def interleaved(x: np.ndarray, heads: int) -> np.ndarray:
    """Rows (or bias entries) from pairs half a head apart to adjacent pairs."""
    return x.reshape(heads, 2, len(x) // heads // 2, -1).swapaxes(1, 2).reshape(x.shape)


def metadata(config: dict[str, Any]) -> dict[str, object]:
    """What converters say of a model, under the keys of the gguf package."""
    arch = gguf.MODEL_ARCH_NAMES[ARCH[config["model_type"]]]
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    hidden = config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    head = config.get("head_dim", hidden // heads)
    keys: dict[str, object] = {
        "embedding_length": hidden,
        "block_count": config.get(
            "num_hidden_layers", config.get("n_layer", config.get("num_layers"))
        ),
        "feed_forward_length": config.get(
            "intermediate_size_mlp", config.get("intermediate_size", 4 * hidden)
        ),
        "context_length": config.get("max_position_embeddings", config.get("n_positions")),
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads", heads),
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.freq_base": float(rope.get("rope_theta", config.get("rope_theta", usual(config)))),
    }
    turned = rope.get("partial_rotary_factor", 1.0)
    if turned != 1 or config["model_type"] not in ("gpt2", "gemma2", "gemma3_text"):
        keys["rope.dimension_count"] = int(head * turned)
    rms = "rms_norm_eps" in config or config["model_type"] == "exaone"
    epsilon = "layer_norm_rms_epsilon" if rms else "layer_norm_epsilon"
    keys[f"attention.{epsilon}"] = config.get("rms_norm_eps", 1e-5)
    keys |= scaling(config, rope) | special(config) | windows(config) | experts(config)
    return {"general.architecture": arch} | {f"{arch}.{k}": v for k, v in keys.items()}


def usual(config: dict[str, Any]) -> float:
    """The base a family's configs imply when they do not say one."""
    return {"mixtral": 1e6}.get(config["model_type"], 10000.0)


def scaling(config: dict[str, Any], rope: dict[str, Any]) -> dict[str, object]:
    kind = rope.get("rope_type")
    original = rope.get("original_max_position_embeddings", 0)
    if config["model_type"] == "minicpm":
        return {"rope.scaling.type": kind}
    if kind == "longrope":
        factor = config["max_position_embeddings"] / original
        stretched = math.sqrt(1 + math.log(factor) / math.log(original))
        return {
            "rope.scaling.attn_factor": stretched,
            "rope.scaling.original_context_length": original,
        }
    if kind not in ("linear", "yarn"):
        return {}
    found: dict[str, object] = {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = original
    if "beta_fast" in rope:
        found["rope.scaling.yarn_beta_fast"] = rope["beta_fast"]
    if rope.get("mscale_all_dim"):
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    return found


def special(config: dict[str, Any]) -> dict[str, object]:
    """Multipliers, caps, the order of blocks, and latent attention."""
    known = {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "embedding_multiplier": "embedding_scale",
        "logits_scaling": "logit_scale",
        "logit_scale": "logit_scale",
        "scale_emb": "embedding_scale",
    }
    found: dict[str, object] = {known[k]: v for k, v in config.items() if k in known}
    usual_order = {"gpt_neox": True, "stablelm": False}
    if config["model_type"] in usual_order:
        default = usual_order[config["model_type"]]
        found["use_parallel_residual"] = config.get("use_parallel_residual", default)
    if config["model_type"] == "gemma3_text":
        local = config["rope_parameters"]["sliding_attention"]
        found["rope.freq_base_swa"] = local["rope_theta"]
    if config["model_type"] == "minicpm":
        found["residual_scale"] = config["scale_depth"] / config["num_hidden_layers"] ** 0.5
        found["logit_scale"] = config["hidden_size"] / config["dim_model_base"]
    if "kv_lora_rank" in config:
        rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
        found |= {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + turned,
            "attention.value_length": rank,
            "attention.key_length_mla": turned + config["qk_nope_head_dim"],
            "attention.value_length_mla": config["v_head_dim"],
            "rope.dimension_count": turned,
        }
        if config["q_lora_rank"]:
            found["attention.q_lora_rank"] = config["q_lora_rank"]
    return found


def windows(config: dict[str, Any]) -> dict[str, object]:
    if not config.get("sliding_window"):
        return {}
    kinds, count = config.get("layer_types"), config["num_hidden_layers"]
    if config["model_type"] == "cohere2":
        kinds = None  # llama.cpp knows that it is every fourth layer
    if "max_window_layers" in config:
        kinds = ["full_attention"] * config["max_window_layers"]
        kinds += ["sliding_attention"] * (count - len(kinds))
    found: dict[str, object] = {"attention.sliding_window": config["sliding_window"]}
    if kinds:
        found["attention.sliding_window_pattern"] = np.array(
            [kind == "sliding_attention" for kind in kinds]
        )
    return found


def experts(config: dict[str, Any]) -> dict[str, object]:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((config[n] for n in names if n in config), 0)
    if not count:
        return {}
    known = {
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "n_shared_experts": "expert_shared_count",
        "routed_scaling_factor": "expert_weights_scale",
        "norm_topk_prob": "expert_weights_norm",
        "first_k_dense_replace": "leading_dense_block_count",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    }
    if "intermediate_size_mlp" in config:
        known["intermediate_size"] = "expert_feed_forward_length"
    if config.get("scoring_func") == "sigmoid":
        config = {**config, "gating": 2}
        known["gating"] = "expert_gating_func"
    found: dict[str, object] = {known[k]: v for k, v in config.items() if k in known}
    return {**found, "expert_count": count, "expert_used_count": config["num_experts_per_tok"]}


def rope_tensors(config: dict[str, Any]) -> Arrays:
    """Rope scaling that converters work out: one divisor for each frequency."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        factors = llama3_factors(rope, config["head_dim"])
        assert len(set(factors.tolist())) > 2, "stretched, blended and kept frequencies"
        return {"rope_freqs.weight": factors}
    if rope.get("rope_type") == "longrope":
        lists = {k: np.array(rope[f"{k}_factor"], np.float32) for k in ("long", "short")}
        return {f"rope_factors_{k}.weight": values for k, values in lists.items()}
    return {}


def llama3_factors(rope: dict[str, Any], head: int) -> np.ndarray:
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, found = rope["original_max_position_embeddings"], []
    for i in range(0, head, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head)
        blend = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(found, np.float32)
