"""Two tiny OPT models in a client's cache under the names of two published ones: the large one is
the small one's layer and one more.
"""

from pathlib import Path
from typing import Any

import numpy as np

from filewriters import Tensor, encode
from tiny_model import EOS, VOCAB, tiny_folder

COMMIT = "0" * 40
LARGE, SMALL = "facebook/opt-6.7b", "facebook/opt-125m"
HIDDEN, INNER, POSITIONS = 32, 64, 256


def opt_config(layers: int) -> dict[str, Any]:
    return {
        "model_type": "opt", "hidden_size": HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": 4, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS,
        "ffn_dim": INNER, "word_embed_proj_dim": HIDDEN, "activation_function": "relu",
        "do_layer_norm_before": True, "tie_word_embeddings": True, "eos_token_id": EOS,
    }  # fmt: skip


def opt_tensors(layers: int) -> dict[str, Tensor]:
    """The same first tensors whatever the number of layers; later layers add little."""
    rng, top = np.random.default_rng(3), "model.decoder."

    def drawn(*shape: int, scale: float) -> Tensor:
        return encode(rng.normal(0, scale, shape), "f32")

    def norm(name: str) -> dict[str, Tensor]:
        weight = encode(rng.uniform(0.7, 1.3, HIDDEN), "f32")
        return {f"{name}.weight": weight, f"{name}.bias": drawn(HIDDEN, scale=0.1)}

    found = {
        f"{top}embed_tokens.weight": drawn(VOCAB, HIDDEN, scale=0.6),
        f"{top}embed_positions.weight": drawn(POSITIONS + 2, HIDDEN, scale=0.1),
        **norm(f"{top}final_layer_norm"),
    }
    for i in range(layers):
        at, scale = f"{top}layers.{i}.", 0.3 if i == 0 else 0.08
        found |= norm(f"{at}self_attn_layer_norm") | norm(f"{at}final_layer_norm")
        shapes = {f"self_attn.{name}": (HIDDEN, HIDDEN) for name in ("q_proj", "k_proj", "v_proj")}
        shapes |= {"self_attn.out_proj": (HIDDEN, HIDDEN)}
        shapes |= {"fc1": (INNER, HIDDEN), "fc2": (HIDDEN, INNER)}
        for name, shape in shapes.items():
            found[f"{at}{name}.weight"] = drawn(*shape, scale=scale)
            found[f"{at}{name}.bias"] = drawn(shape[0], scale=0.05)
    return found


def write_pair(cache: Path) -> None:
    """Both models, as if they had been fetched."""
    for name, layers in ((LARGE, 2), (SMALL, 1)):
        repo = cache / f"models--{name.replace('/', '--')}"
        config = dict.fromkeys(("num_key_value_heads", "rms_norm_eps", "rope_theta"))
        tiny_folder(
            repo / "snapshots" / COMMIT, {**config, **opt_config(layers)}, opt_tensors(layers)
        )
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(COMMIT)
