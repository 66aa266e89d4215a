"""Makes the tiny random checkpoints under tests/data/models and what transformers says of them.

    python tests/model/make_fixtures.py OUT_DIR [NAME ...]

Needs torch and transformers.  Weights are drawn so that mistakes show: every norm and bias random,
attention far from uniform, logits' standard deviation above 2, prompts longer than every rope
threshold.  Deterministic for one version of numpy; `.ci/run` makes them anew and compares.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import expert_fixtures
import fixture_models
import newer_fixtures
import numpy as np
import torch
from fixture_models import GREEDY, PROMPT, Fixture
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

MODELS = fixture_models.MODELS | newer_fixtures.MODELS | expert_fixtures.MODELS
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 100, 127, 128, 129, 150, 180, 198, 199)
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def draw(name: str, tensor: torch.Tensor, rng: np.random.Generator, of: Fixture) -> torch.Tensor:
    """Values of a tensor by its role; [out, in] matrices keep their input's variance, times a
    gain.  A tied embedding is small, so that the next token is not the last one again, and the
    final norm makes up for it.
    """
    x = rng.standard_normal(tuple(tensor.shape)).astype(np.float32)
    tied = of.config["tie_word_embeddings"]
    if name.endswith(("bias", "proj_bias")):
        return torch.from_numpy(0.5 * x)
    if "norm" in name or ".ln_" in name:
        gain = 3.0 if tied and name in FINAL else 1.0
        one = 1.0 if of.model_type.startswith("gemma") else 0.0  # which its weights leave out
        return torch.from_numpy(gain * (0.4 * x + 1.0) - one)
    if name.endswith("sinks"):
        return torch.from_numpy(x)
    if "embed_in" in name or "embed_tokens" in name or "wte" in name:
        scale = 8.0 if of.model_type.startswith("gemma") else 1.0
        return torch.from_numpy(x * (0.3 / scale**0.5 if tied else 1.0))
    if "wpe" in name or "embed_positions" in name:
        return torch.from_numpy(0.5 * x)
    strong = ("q_proj", "k_proj", "qkv_proj", "c_attn", "query_key_value", "mlp.gate.", "router")
    gain = 2.0 if any(s in name for s in strong) else 1.0
    gain = 3.0 if "lm_head" in name or "embed_out" in name else gain
    turned = name.endswith(TURNED) or (of.model_type in IN_OUT and ".experts." in name)
    columns = tensor.shape[-2 if turned else -1]
    if of.model_type == "gpt_oss" and "gate_up_proj" in name:
        gain = 5.0  # so that the clamp is reached
    return torch.from_numpy(x * gain / np.sqrt(columns))


FINAL = ("model.norm.weight", "transformer.ln_f.weight", "model.decoder.final_layer_norm.weight")
IN_OUT = ("gpt_oss", "llama4_text")  # whose experts are [E, in, out]
TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # of GPT-2: [in, out]


def build(name: str) -> torch.nn.Module:
    """The model in float32 holding values that survive its storage type exactly."""
    fixture = MODELS[name]
    settings = {k: v for k, v in fixture.config.items() if k != "quantization_config"}
    if fixture.computed_as:
        settings = STAND_INS[fixture.model_type](settings)
    settings["model_type"] = SAME_CODE.get(settings["model_type"], settings["model_type"])
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    rng = np.random.default_rng(sum(map(ord, name)))
    with torch.no_grad():
        corrections = [b for b in model.named_buffers() if b[0].endswith("correction_bias")]
        for key, tensor in [*model.named_parameters(), *corrections]:
            turned = key if fixture.model_type == "gpt2" else key.replace("mlp.c_", "mlp.")
            values = draw(turned, tensor, rng, fixture)
            if fixture.mxfp4 and key.endswith(EXPERTS):
                values = unpacked(*packed(key, tensor.shape))
            tensor.copy_(values.to(DTYPES[fixture.dtype]).float())
    return model.eval()


def exaone(settings: dict[str, Any]) -> dict[str, Any]:
    """EXAONE 3 is not in transformers; it is a Llama with other words for its settings."""
    renamed = {
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    }
    found = {renamed.get(key, key): value for key, value in settings.items()}
    return {**found, "model_type": "llama"}


def minicpm(settings: dict[str, Any]) -> dict[str, Any]:
    """MiniCPM is not in transformers; it is a Granite whose multipliers follow from its sizes."""
    heads = settings["hidden_size"] // settings["num_attention_heads"]
    return {
        **{
            k: v
            for k, v in settings.items()
            if k not in ("scale_emb", "scale_depth", "dim_model_base")
        },
        "model_type": "granite",
        "attention_multiplier": heads**-0.5,
        "embedding_multiplier": float(settings["scale_emb"]),
        "residual_multiplier": settings["scale_depth"] / settings["num_hidden_layers"] ** 0.5,
        "logits_scaling": settings["hidden_size"] / settings["dim_model_base"],
    }


STAND_INS = {"exaone": exaone, "minicpm": minicpm}
EXAONE_NAMES = {
    "model.embed_tokens": "transformer.wte",
    "model.layers": "transformer.h",
    "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
}
SAME_CODE = {"kimi_k2": "deepseek_v3"}  # model types that transformers does not name
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def packed(key: str, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Random MXFP4 blocks and scales of experts' matrices, [E, in, out] once unpacked."""
    rng = np.random.default_rng(sum(map(ord, key)))
    experts, columns, rows = shape
    blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8)
    scales = rng.integers(122, 125, blocks.shape[:3]).astype(np.uint8)  # 2^-5 to 2^-3
    return torch.from_numpy(blocks), torch.from_numpy(scales)


def unpacked(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)


def settle_rope(model: torch.nn.Module, length: int) -> None:
    """Frequencies of a model that runs `length` tokens, whatever it sees of them."""
    rotary = model.model.rotary_emb
    kind = model.config.rope_parameters["rope_type"]
    rotary.inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[kind](
        model.config, None, seq_len=length
    )
    rotary.rope_type = "settled"  # nothing changes them any more


def expect(model: torch.nn.Module, name: str, length: int) -> dict[str, np.ndarray]:
    """What the first prompt gives after which no two tokens are as good as equal."""
    for attempt in range(20):
        rng = np.random.default_rng(7 + sum(map(ord, name)) + 1000 * attempt)
        found, margin = answer(model, MODELS[name].config["vocab_size"], length, rng)
        if margin > 2e-3:
            print(name, length, f"std {found['logits'].std():.2f}, least margin {margin:.1e}")
            assert found["logits"].std() >= 2, name
            return found
    raise AssertionError(f"{name}: ties would make greedy tokens ambiguous")


def answer(
    model: torch.nn.Module, vocab: int, length: int, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], float]:
    """Logits of chosen rows of a prompt, the greedy tokens after it, 64 if they fit, and the
    closest any of them came to a tie.
    """
    count = min(PROMPT, length * 3 // 4)
    rows = [row for row in ROWS if row < count]
    prompt = torch.from_numpy(rng.integers(3, vocab, (1, count)))
    with torch.no_grad():
        logits = model(prompt).logits[0]
        tokens = prompt
        margins = []
        for _ in range(min(GREEDY, length - count)):
            last = model(tokens).logits[0, -1]
            best = torch.topk(last, 2).values
            margins.append(float(best[0] - best[1]))
            tokens = torch.cat([tokens, last.argmax().reshape(1, 1)], 1)
        last = model(tokens[:, :-1]).logits[0, -3:]  # near the context's end
    found = dict(
        prompt=prompt[0].numpy().astype(np.int32),
        rows=np.array(rows, np.int32),
        logits=logits[rows].numpy(),
        greedy=tokens[0, count:].numpy().astype(np.int32),
        last=last.numpy(),
        length=np.array(length, np.int32),
    )
    return found, min(margins)


def published(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors under the names and in the shapes the family is published in."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return dict(load_file(Path(folder) / "model.safetensors"))


def save(model: torch.nn.Module, fixture: Fixture, out: Path) -> None:
    """A Hugging Face directory; the sharded one proves the index."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(fixture.config, indent=1) + "\n")
    tensors = {k: v.to(DTYPES[fixture.dtype]).contiguous() for k, v in published(model).items()}
    if fixture.model_type == "exaone":
        for llama, own in EXAONE_NAMES.items():
            tensors = {k.replace(llama, own): v for k, v in tensors.items()}
    for key in [key for key in tensors if fixture.mxfp4 and key.endswith(EXPERTS)]:
        blocks, scales = packed(key, tensors.pop(key).shape)
        tensors |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
    if out.name == "qwen3":
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


def main(out: Path, names: list[str]) -> None:
    torch.set_num_threads(1)  # these models are too small for two
    for name in names or MODELS:
        model, fixture = build(name), MODELS[name]
        save(model, fixture, out / name)
        for i, length in enumerate(fixture.lengths or (PROMPT + GREEDY,)):
            if fixture.lengths:
                settle_rope(model, length)
            file = f"expected-{length}.npz" if i else "expected.npz"
            np.savez_compressed(out / name / file, **expect(model, name, length))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
