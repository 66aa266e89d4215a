"""The tiny Llama of `tiny_model` in NumPy and float64, from its tensors alone: what figures are
compared with.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from filewriters import Tensor
from tiny_model import CONFIG

F64 = NDArray[np.float64]


def log_probabilities(tensors: Mapping[str, Tensor], tokens: list[int]) -> F64:
    """Of every token of the vocabulary after each of `tokens`: [T, V]."""
    w = {k: np.frombuffer(t[2], np.float32).reshape(t[1]).astype(float) for k, t in tensors.items()}
    T, n, kv = len(tokens), CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    D = CONFIG["hidden_size"] // n
    angle = np.outer(np.arange(T), CONFIG["rope_theta"] ** (-np.arange(0, D, 2) / D))[:, None]

    def norm(x: F64, name: str) -> F64:
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"])
        return x / scale * w[name + ".weight"]

    def turn(x: F64) -> F64:
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (
            (y @ w[f"{at}self_attn.{name}_proj.weight"].T).reshape(T, heads, D)
            for name, heads in (("q", n), ("k", kv), ("v", kv))
        )
        k, v = (np.repeat(z, n // kv, 1) for z in (turn(k), v))
        scores = np.einsum("thd,shd->hts", turn(q), k) / np.sqrt(D)
        p = np.exp(np.where(np.tri(T, dtype=bool), scores, -np.inf))
        mixed = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v).reshape(T, -1)
        x = x + mixed @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, at + "post_attention_layernorm")
        gate = y @ w[at + "mlp.gate_proj.weight"].T
        up = y @ w[at + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
    logits = norm(x, "model.norm") @ w["model.embed_tokens.weight"].T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
