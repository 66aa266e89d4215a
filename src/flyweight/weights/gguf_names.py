"""GGUF's vocabulary to Hugging Face's: tensor names per architecture, and the metadata as a
config.json would say it.

Invariant: what a family reads from the translated config is all the file says about its shape; what
we cannot honour is refused by name. Key names: ggml's docs/gguf.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyweight.errors import CheckpointError, nearest
from flyweight.untrusted import END_KEYS, shown, token_id
from flyweight.weights.tensorinfo import Span

GATED = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.*.attn_norm": "model.layers.*.input_layernorm",
    "blk.*.attn_q": "model.layers.*.self_attn.q_proj",
    "blk.*.attn_k": "model.layers.*.self_attn.k_proj",
    "blk.*.attn_v": "model.layers.*.self_attn.v_proj",
    "blk.*.attn_output": "model.layers.*.self_attn.o_proj",
    "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.ffn_gate": "model.layers.*.mlp.gate_proj",
    "blk.*.ffn_up": "model.layers.*.mlp.up_proj",
    "blk.*.ffn_down": "model.layers.*.mlp.down_proj",
}
HEAD_NORMS = {
    "blk.*.attn_q_norm": "model.layers.*.self_attn.q_norm",
    "blk.*.attn_k_norm": "model.layers.*.self_attn.k_norm",
}
BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Architecture:
    """`interleaved`: rows of q and k are stored in the interleaved rope order."""

    model_type: str
    names: Mapping[str, str]
    interleaved: bool = False


ARCHITECTURES = {
    "llama": Architecture("llama", GATED, interleaved=True),
    "qwen2": Architecture("qwen2", GATED),
    "qwen3": Architecture("qwen3", GATED | HEAD_NORMS),
}


def architecture(metadata: Mapping[str, object], where: str) -> Architecture:
    """The architecture a file names, or `CheckpointError` listing those there are."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        found = "is missing" if name is None else f"= {shown(name)} is not supported"
        hint = nearest(name[:80], ARCHITECTURES) if isinstance(name, str) else ""
        raise CheckpointError(f"{where}: general.architecture {found}; known: {known}{hint}")
    return ARCHITECTURES[name]


def translate(names: Mapping[str, str], name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name not in the table
    stays as it is.
    """
    stem, _, part = name.rpartition(".")
    numbered = BLOCK.fullmatch(stem)
    layer, pattern = (numbered[1], f"blk.*.{numbered[2]}") if numbered else ("", stem)
    if part not in ("weight", "bias") or pattern not in names or "*" in stem:
        return name
    return f"{names[pattern].replace('*', layer)}.{part}"


def hf_config(
    metadata: Mapping[str, object], spans: Mapping[str, Span], where: str
) -> dict[str, Any]:
    """The config.json this file amounts to.  `spans` are the file's tensors under its own names."""
    arch = architecture(metadata, where)
    keys = _Keys(metadata, str(metadata["general.architecture"]), where)
    keys.refuse("expert_count", lambda v: v > 0, "mixtures of experts are not read yet")
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    head = keys.whole("attention.key_length", hidden // heads)
    keys.refuse("attention.value_length", lambda v: v != head, f"it must equal key_length {head}")
    keys.refuse(
        "rope.dimension_count", lambda v: v != head, f"only whole heads of {head} are rotated"
    )
    config: dict[str, Any] = {
        "model_type": arch.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "head_dim": head,
        "intermediate_size": keys.whole("feed_forward_length"),
        "vocab_size": _vocabulary(metadata, keys, spans),
        "max_position_embeddings": keys.whole("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in spans,
        "attention_bias": "blk.0.attn_q.bias" in spans,
        "mlp_bias": "blk.0.ffn_down.bias" in spans,
    }
    context = config["max_position_embeddings"]
    keys.refuse(
        "attention.sliding_window", lambda v: 0 < v < context, "sliding windows are not read yet"
    )
    return config


def end_ids(metadata: Mapping[str, object], where: str) -> list[int]:
    """Ids that end a text: end of sequence, of turn, of message."""
    found = (token_id(metadata, key, f"{where}: ") for key in END_KEYS)
    return [i for i in found if i is not None]


class _Keys:
    """Typed access to the keys of one architecture; a wrong type is an error naming the key."""

    def __init__(self, metadata: Mapping[str, object], arch: str, where: str) -> None:
        self.metadata, self.arch, self.where = metadata, arch, where

    def get(self, key: str) -> object:
        """The value; an array with one entry per layer counts as that entry when all are equal."""
        value = self.metadata.get(f"{self.arch}.{key}")
        if value is None or isinstance(value, int | float | str):
            return value
        entries = {x.item() if hasattr(x, "item") else x for x in value}  # type: ignore[attr-defined]
        if len(entries) != 1:
            raise self._fail(key, f"{len(entries)} different values", "the same for every layer")
        return entries.pop()

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._fail(key, value, "a whole number, 1 or more")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self._fail(key, value, "a finite number above 0")
        short = float(str(np.float32(value)))  # 1e-05, not 9.999999747378752e-06
        return short if np.float32(short) == value else float(value)

    def refuse(self, key: str, bad: Any, reason: str) -> None:
        """`CheckpointError` when the key is there and `bad(value)`."""
        value = self.get(key)
        if value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or bad(value):
            raise self._fail(key, value, reason)

    def _fail(self, key: str, value: object, allowed: str) -> CheckpointError:
        found = "is missing" if value is None else f"= {shown(value)}"
        return CheckpointError(f"{self.where}: {self.arch}.{key} {found}; {allowed}")


def _vocabulary(metadata: Mapping[str, object], keys: _Keys, spans: Mapping[str, Span]) -> int:
    """The embedding's rows decide; a file without it (vocabulary only) says it in metadata or by
    its tokens.
    """
    if "token_embd.weight" in spans:
        return spans["token_embd.weight"].shape[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    return keys.whole("vocab_size", len(tokens) if isinstance(tokens, list) else None)


def _rope_scaling(keys: _Keys) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type")
    linear = keys.get("rope.scale_linear")  # what files before 2024 said
    if kind is None and linear is not None:
        factor = keys.real("rope.scale_linear")
        return None if factor == 1 else {"rope_type": "linear", "factor": factor}
    if kind is None or kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.real("rope.scaling.factor")}
    if keys.get("rope.scaling.original_context_length") is not None:
        original = keys.whole("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
    return scaling
