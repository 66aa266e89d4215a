"""Makes the tiny random checkpoints under tests/data/models and what transformers says of them.

    python tests/model/make_fixtures.py OUT_DIR

Needs torch and transformers.  Weights are drawn so that mistakes show: every norm and bias random,
attention far from uniform, logits' standard deviation above 2, prompts longer than every rope
threshold.  Deterministic for one version of numpy; `.ci/run` makes them anew and compares.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

PROMPT, GREEDY = 200, 64
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 100, 127, 128, 129, 150, 180, 198, 199)
BASE = dict(
    hidden_size=64,
    intermediate_size=104,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=320,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
    rope_theta=5000.0,
)
MODELS = {
    "llama1": (dict(model_type="llama", num_key_value_heads=4, rope_theta=10000.0), "f32"),
    "llama2-gqa": (
        dict(model_type="llama", num_key_value_heads=1, tie_word_embeddings=True),
        "bf16",
    ),
    "llama3": (dict(model_type="llama", head_dim=32, rope_parameters=LLAMA3), "bf16"),
    "llama-linear": (
        dict(
            model_type="llama",
            rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0),
        ),
        "f16",
    ),
    "llama-bias": (dict(model_type="llama", attention_bias=True, mlp_bias=True), "f32"),
    "mistral": (
        dict(model_type="mistral", head_dim=24, rope_theta=30000.0, sliding_window=None),
        "bf16",
    ),
    "qwen2": (dict(model_type="qwen2", rope_theta=20000.0, tie_word_embeddings=True), "bf16"),
    "qwen3": (dict(model_type="qwen3", head_dim=48, rope_theta=50000.0, rms_norm_eps=1e-6), "bf16"),
    "qwen3-bias": (
        dict(model_type="qwen3", head_dim=32, attention_bias=True, tie_word_embeddings=True),
        "f32",
    ),
}
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def draw(name: str, tensor: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Values of a tensor by its role; [out, in] matrices keep their input's variance, times a
    gain.
    """
    x = rng.standard_normal(tuple(tensor.shape)).astype(np.float32)
    if "norm" in name:
        return torch.from_numpy(1.0 + 0.4 * x)
    if name.endswith("bias"):
        return torch.from_numpy(0.5 * x)
    if "embed" in name:
        return torch.from_numpy(x)
    gain = 2.0 if "q_proj" in name or "k_proj" in name else 3.0 if "lm_head" in name else 1.0
    return torch.from_numpy(x * gain / np.sqrt(tensor.shape[-1]))


def build(name: str) -> tuple[torch.nn.Module, dict]:
    """The model in float32 holding values that survive its storage type exactly."""
    options, dtype = MODELS[name]
    settings = {**BASE, **options}
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    rng = np.random.default_rng(sum(map(ord, name)))
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            tensor.copy_(draw(key, tensor, rng).to(DTYPES[dtype]).float())
    return model.eval(), settings


def expect(model: torch.nn.Module, name: str, vocab: int) -> dict[str, np.ndarray]:
    """Logits of chosen rows of a prompt, and 64 greedy tokens after it."""
    rng = np.random.default_rng(7 + sum(map(ord, name)))
    prompt = torch.from_numpy(rng.integers(3, vocab, (1, PROMPT)))
    with torch.no_grad():
        logits = model(prompt).logits[0]
        tokens = prompt
        margins = []
        for _ in range(GREEDY):
            last = model(tokens).logits[0, -1]
            best = torch.topk(last, 2).values
            margins.append(float(best[0] - best[1]))
            tokens = torch.cat([tokens, last.argmax().reshape(1, 1)], 1)
    assert logits.std() >= 2, (name, logits.std())
    assert min(margins) > 2e-3, (name, "a tie would make greedy tokens ambiguous", min(margins))
    return dict(
        prompt=prompt[0].numpy().astype(np.int32),
        rows=np.array(ROWS, np.int32),
        logits=logits[list(ROWS)].numpy(),
        greedy=tokens[0, PROMPT:].numpy().astype(np.int32),
    )


def save(model: torch.nn.Module, settings: dict, dtype: str, out: Path) -> None:
    """A Hugging Face directory; the sharded one proves the index."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
    tensors = {k: v.detach().to(DTYPES[dtype]).contiguous() for k, v in model.state_dict().items()}
    if settings["tie_word_embeddings"]:
        tensors.pop("lm_head.weight")
    if settings["model_type"] == "qwen3" and dtype == "bf16":
        return save_shards(tensors, out)
    save_file(tensors, out / "model.safetensors")
    return None


def save_shards(tensors: dict[str, torch.Tensor], out: Path) -> None:
    names = sorted(tensors)
    halves = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, keys in halves.items():
        save_file({k: tensors[k] for k in keys}, out / file)
    index = {"metadata": {}, "weight_map": {k: f for f, keys in halves.items() for k in keys}}
    (out / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=1, sort_keys=True) + "\n"
    )


def main(out: Path) -> None:
    for name, (_, dtype) in MODELS.items():
        model, settings = build(name)
        save(model, settings, dtype, out / name)
        np.savez_compressed(
            out / name / "expected.npz", **expect(model, name, settings["vocab_size"])
        )
        print(name, sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
