"""GGUF's metadata as a config.json would say it.

Invariant: what a family reads from the translated config is all the file says about its shape; what
is not supported is refused by name. Key names: ggml's docs/gguf.md.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError
from flyweight.validation.strings import Strings
from flyweight.validation.untrusted import END_KEYS, read_token_id, shown
from flyweight.weights.gguf_names import find_architecture
from flyweight.weights.tensorinfo import Span

# What is taken over as it is where a file has it: metadata key to config keys.
REALS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "residual_scale": "residual_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "expert_weights_scale": "routed_scaling_factor",
    "rope.freq_base_swa": "rope_local_base_freq",
}
WHOLES = {
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
}
FLAGS = {"use_parallel_residual": "use_parallel_residual", "expert_weights_norm": "norm_topk_prob"}
MOST_LAYERS = 65536  # what is said of each must not size memory; families allow fewer
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
SOFTMAX, SIGMOID = (0, 1, 3), 2  # not said, of all experts, of the chosen ones
GROUPED = 256, 8, 4  # DeepSeek-V3: experts, groups, groups kept; its first files say no groups
NO_PATTERN = {"gemma3_text": {"sliding_window_pattern": 1}}  # then every layer sees everything
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "layer_norm_epsilon")
LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}  # layers of the 27B, whose scores are scaled again


def make_hf_config(
    metadata: Mapping[str, object], spans: Mapping[str, Span], where: str
) -> dict[str, Any]:
    """The config.json this file amounts to.  `spans` are the file's tensors under its own names."""
    arch = find_architecture(metadata, where)
    name = str(metadata["general.architecture"])
    keys = _Keys(metadata, name, where)
    hidden, heads = keys.get_whole("embedding_length"), keys.get_whole("attention.head_count")
    config: dict[str, Any] = {
        "model_type": arch.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": keys.get_whole("block_count", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.get_whole("attention.head_count_kv", heads),
        "intermediate_size": keys.get_whole("feed_forward_length"),
        "vocab_size": _count_vocabulary(metadata, keys, spans),
        "max_position_embeddings": keys.get_whole("context_length"),
        "rope_theta": keys.get_real("rope.freq_base", 1e6 if name == "gemma3" else 10000.0),
        "rope_scaling": _read_rope_scaling(keys, name),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in spans,
    }
    config |= dict.fromkeys(EPSILONS, _read_epsilon(keys))
    config |= _find_biases(spans)
    found = {c: k for k, c in REALS.items() if keys.get(k) is not None}
    config |= {
        c: keys.get_real(k) if keys.get(k) != 0 else None for c, k in found.items()
    }  # 0: off
    config |= {c: keys.get_whole(k) for k, c in WHOLES.items() if keys.get(k) not in (None, 0)}
    config |= {c: bool(keys.get(k)) for k, c in FLAGS.items() if keys.get(k) is not None}
    if (dense := keys.get("leading_dense_block_count")) is not None:
        config["first_k_dense_replace"] = dense  # 0 is a count too
    if "kv_lora_rank" in config:
        config |= _read_latent(keys, heads)
    else:
        config |= _read_head(keys, hidden // heads)
    config |= _read_experts(keys, name) | _read_windows(keys, config) | dict(arch.fixed)
    if name in LARGEST_GEMMAS:
        largest = config["num_hidden_layers"] == LARGEST_GEMMAS[name]
        config["query_pre_attn_scalar"] = hidden // heads if largest else config["head_dim"]
    if name == "llama4":
        config |= _read_llama4(keys)
    return {arch.renamed.get(key, key): value for key, value in config.items()}


def find_end_ids(metadata: Mapping[str, object], where: str) -> list[int]:
    """Ids that end a text: end of sequence, of turn, of message."""
    found = (read_token_id(metadata, key, f"{where}: ") for key in END_KEYS)
    return [i for i in found if i is not None]


class _Keys:
    """Typed access to the keys of one architecture; a wrong type is an error naming the key."""

    def __init__(self, metadata: Mapping[str, object], arch: str, where: str) -> None:
        self.metadata, self.arch, self.where = metadata, arch, where

    def get_raw(self, key: str) -> object:
        return self.metadata.get(f"{self.arch}.{key}")

    def get(self, key: str) -> object:
        """The value; an array with one entry per layer counts as that entry when all are equal."""
        value = self.get_raw(key)
        if value is None or isinstance(value, int | float | str):
            return value
        entries = {x.item() if hasattr(x, "item") else x for x in value}  # type: ignore[attr-defined]
        if len(entries) != 1:
            raise self.fail(key, f"{len(entries)} different values", "the same for every layer")
        return entries.pop()

    def get_whole(self, key: str, default: int | None = None, most: int = 2**63) -> int:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            top = f"from 1 to {most}" if most < 2**63 else "1 or more"
            raise self.fail(key, value, f"a whole number, {top}")
        return value

    def get_real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self.fail(key, value, "a finite number above 0")
        short = float(str(np.float32(value)))  # 1e-05, not 9.999999747378752e-06
        return short if np.float32(short) == value else float(value)

    def fail(self, key: str, value: object, allowed: str) -> CheckpointError:
        found = "is missing" if value is None else f"= {shown(value)}"
        return CheckpointError(f"{self.where}: {self.arch}.{key} {found}; {allowed}")


def _read_epsilon(keys: _Keys) -> float:
    plain = "attention.layer_norm_epsilon"
    if keys.get(plain) is not None:
        return keys.get_real(plain)
    return keys.get_real("attention.layer_norm_rms_epsilon")


def _find_biases(spans: Mapping[str, Span]) -> dict[str, bool]:
    """Which matrices the file has biases for, in every family's words, and heads norms."""
    qkv = "blk.0.attn_q.bias" in spans or "blk.0.attn_qkv.bias" in spans
    named = dict.fromkeys(("attention_bias", "use_qkv_bias", "qkv_bias", "use_bias"), qkv)
    return {
        **named,
        "attention_out_bias": "blk.0.attn_output.bias" in spans,
        "mlp_bias": "blk.0.ffn_down.bias" in spans,
        **dict.fromkeys(("qk_layernorm", "use_qk_norm"), "blk.0.attn_q_norm.weight" in spans),
    }


def _read_head(keys: _Keys, usual: int) -> dict[str, Any]:
    """A head's size, and how much of it turns."""
    head = keys.get_whole("attention.key_length", usual)
    value = keys.get("attention.value_length")
    if value is not None and value != head:
        raise keys.fail("attention.value_length", value, f"it must equal key_length {head}")
    found: dict[str, Any] = {"head_dim": head}
    if keys.get("rope.dimension_count") is not None:
        turned = keys.get_whole("rope.dimension_count")
        if turned > head:
            raise keys.fail("rope.dimension_count", turned, f"a head has {head} elements")
        found["partial_rotary_factor"] = turned / head
    if (sections := keys.get_raw("rope.dimension_sections")) is not None:
        raise keys.fail("rope.dimension_sections", sections, "positions in pictures: not supported")
    return found


def _read_latent(keys: _Keys, heads: int) -> dict[str, Any]:
    """Sizes of latent attention; files made for absorbed matrices give those of whole heads under
    names of their own.
    """
    if (scale := keys.get("attention.temperature_scale")) not in (None, 0):  # Mistral Large 3
        allowed = "latent attention with it is not supported; allowed: 0"
        raise keys.fail("attention.temperature_scale", scale, allowed)
    absorbed = keys.get("attention.key_length_mla") is not None
    whole, rope = "_mla" if absorbed else "", keys.get_whole("rope.dimension_count")
    head = keys.get_whole(f"attention.key_length{whole}")
    if head <= rope:
        raise keys.fail(f"attention.key_length{whole}", head, f"more than the {rope} that turn")
    return {
        "num_key_value_heads": heads,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": head - rope,
        "v_head_dim": keys.get_whole(f"attention.value_length{whole}"),
    }


def _read_experts(keys: _Keys, name: str) -> dict[str, Any]:
    count = keys.get("expert_count")
    if not count:
        return {}
    sigmoid = _uses_sigmoid(keys, name)
    found: dict[str, Any] = dict.fromkeys(EXPERT_COUNTS, keys.get_whole("expert_count"))
    if name == "llama":
        found["model_type"] = "mixtral"
    groups, method = keys.get("expert_group_count"), "group_limited_greedy"
    if sigmoid and name == "deepseek2":
        method = "noaux_tc"
        found |= {"model_type": "deepseek_v3", "n_group": 1, "topk_group": 1}
        if groups is None and count == GROUPED[0]:
            found |= {"n_group": GROUPED[1], "topk_group": GROUPED[2]}
    if groups is not None and groups != 1:
        found |= {
            "topk_method": method,
            "n_group": keys.get_whole("expert_group_count"),
            "topk_group": keys.get_whole("expert_group_used_count"),
        }
    return found


def _uses_sigmoid(keys: _Keys, name: str) -> bool:
    """Whether the router scores every expert by itself."""
    gating = keys.get("expert_gating_func")
    allowed = (None, *SOFTMAX, SIGMOID) if name == "deepseek2" else (None, *SOFTMAX)
    if gating not in allowed:
        more = f", or sigmoid, {SIGMOID}" if name == "deepseek2" else ""
        raise keys.fail("expert_gating_func", gating, f"only softmax is supported, 1 or 3{more}")
    return gating == SIGMOID


def _read_llama4(keys: _Keys) -> dict[str, Any]:
    """What files of Llama 4 leave out: Maverick, the one of 128 experts, has no head norms."""
    if keys.get("attention.sliding_window") == 0:
        allowed = "chunked attention is needed, without this key"
        raise keys.fail("attention.sliding_window", 0, allowed)
    return {"use_qk_norm": keys.get("expert_count") != 128}


def _read_windows(keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers see a window, and how wide: a list with a flag a layer, or every how many-th
    layer sees everything; else the family's usual ones.
    """
    window = keys.get("attention.sliding_window")
    if window is None or window == 0:
        return {"sliding_window": None} | NO_PATTERN.get(str(config["model_type"]), {})
    size = keys.get_whole("attention.sliding_window")
    if config["model_type"] == "llama":
        # Mistral's files call themselves llama
        return {"sliding_window": size, "model_type": "mistral"}
    found: dict[str, Any] = {"sliding_window": size, "use_sliding_window": True}
    if config["model_type"] == "olmo2":
        found["model_type"] = "olmo3"  # which has no architecture of its own
    pattern = keys.get_raw("attention.sliding_window_pattern")
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        return {**found, "sliding_window_pattern": pattern}
    if isinstance(pattern, Iterable) and not isinstance(pattern, str):
        kinds = ["sliding_attention" if flag else "full_attention" for flag in pattern]
        return {**found, "layer_types": kinds}
    if str(config["model_type"]).startswith("qwen"):
        found["layer_types"] = ["sliding_attention"] * config["num_hidden_layers"]
    return found


def _count_vocabulary(
    metadata: Mapping[str, object], keys: _Keys, spans: Mapping[str, Span]
) -> int:
    """The embedding's rows decide; a file without it (vocabulary only) says it in metadata or by
    its tokens.
    """
    if "token_embd.weight" in spans:
        return spans["token_embd.weight"].shape[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    return keys.get_whole("vocab_size", len(tokens) if isinstance(tokens, Strings | list) else None)


def _read_rope_scaling(keys: _Keys, name: str) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type")
    linear = keys.get("rope.scale_linear")  # what files before 2024 said
    if kind is None and linear is not None:
        factor = keys.get_real("rope.scale_linear")
        return None if factor == 1 else {"rope_type": "linear", "factor": factor}
    scaling: dict[str, Any] = {"rope_type": kind}
    if keys.get("rope.scaling.original_context_length") is not None:
        original = keys.get_whole("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
    optional = {"attn_factor": "attention_factor"}
    optional |= {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    for key, known in optional.items():
        if keys.get(f"rope.scaling.{key}") is not None:
            scaling[known] = keys.get_real(f"rope.scaling.{key}")
    if kind is None or kind == "none":
        # longrope's lists are tensors, and may come without a type
        return scaling if len(scaling) > 1 else None
    if kind != "longrope" or keys.get("rope.scaling.factor") is not None:
        scaling["factor"] = keys.get_real("rope.scaling.factor")
    if keys.get("rope.scaling.yarn_log_multiplier") is not None:  # a tenth of DeepSeek's mscales
        scale = 10 * keys.get_real("rope.scaling.yarn_log_multiplier")
        scaling |= {"mscale": scale, "mscale_all_dim": scale}
    if name == "gpt-oss":
        scaling["truncate"] = False
    return scaling
