"""A tiny Llama with random weights and the committed 483-piece vocabulary, as a folder: what the
tests of the API and of the command line run where the story model will not do.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from filewriters import Tensor, encode, write_folder, write_safetensors

VOCABULARY = Path(__file__).parent / "data" / "text" / "tiny-bpe"
BOS, EOS, VOCAB = 480, 481, 483
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": EOS,
}
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tiny_tensors(config: Mapping[str, Any] = CONFIG, seed: int = 0) -> dict[str, Tensor]:
    """Every tensor of the model in float32, drawn so that next tokens differ widely in odds."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]

    def drawn(*shape: int, scale: float = 0.4) -> Tensor:
        return encode(rng.normal(0, scale, shape).astype(np.float32), "f32")

    def near_one() -> Tensor:
        return encode(rng.uniform(0.7, 1.3, hidden).astype(np.float32), "f32")

    found = {"model.embed_tokens.weight": drawn(config["vocab_size"], hidden, scale=0.6)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found |= {
            at + "input_layernorm.weight": near_one(),
            at + "self_attn.q_proj.weight": drawn(hidden, hidden),
            at + "self_attn.k_proj.weight": drawn(kv, hidden),
            at + "self_attn.v_proj.weight": drawn(kv, hidden),
            at + "self_attn.o_proj.weight": drawn(hidden, hidden),
            at + "post_attention_layernorm.weight": near_one(),
            at + "mlp.gate_proj.weight": drawn(inner, hidden),
            at + "mlp.up_proj.weight": drawn(inner, hidden),
            at + "mlp.down_proj.weight": drawn(hidden, inner),
        }
    return found | {"model.norm.weight": near_one()}


def tiny_folder(
    path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    generation: Mapping[str, Any] | None = None,
    **tokenizer: Any,
) -> Path:
    """Writes the model.  `config` and `tokenizer` (of tokenizer_config.json) are put over what the
    model has; a value of None takes a key out.
    """
    write_folder(path, _merged(CONFIG, config or {}), tensors or tiny_tensors())
    settings = json.loads((VOCABULARY / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings = _merged(settings, {"chat_template": None, **tokenizer})
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (path / "tokenizer.json").write_bytes((VOCABULARY / "tokenizer.json").read_bytes())
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return path


def tiny_adapter(
    path: Path, seed: int = 1, config: Mapping[str, Any] = CONFIG, spread: float = 0.4
) -> Path:
    """Writes a LoRA adapter of the query projections of a model with this config."""
    rng, hidden = np.random.default_rng(seed), config["hidden_size"]
    tensors = {}
    for i in range(config["num_hidden_layers"]):
        at = f"base_model.model.model.layers.{i}.self_attn.q_proj"
        tensors[f"{at}.lora_A.weight"] = encode(rng.normal(0, spread, (3, hidden)), "f32")
        tensors[f"{at}.lora_B.weight"] = encode(rng.normal(0, spread, (hidden, 3)), "f32")
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 6}))
    write_safetensors(path / "adapter_model.safetensors", tensors)
    return path


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**first, **second}.items() if value is not None}
