"""Quantised safetensors folders in the shape of Qwen3-0.6B, with random codes: speed does not
depend on the values.

    python bench/make_quantized.py OUT [--formats gptq,awq,nf4,fp8,w8a8,bf16]

Writes OUT/FORMAT/ where it is not there yet: config.json, model.safetensors and a dummy tokenizer.
Embedding and norms are bf16 and the head is the embedding, as published files have them.
"""

import argparse
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, tuple[str, NDArray[np.generic]]]

LAYERS, HIDDEN, HEADS, KV, HEAD, INNER, VOCAB = 28, 1024, 16, 8, 128, 3072, 151936
GROUP, BLOCK = 128, 64  # of GPTQ and AWQ; of NF4
MATRICES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KV * HEAD, HIDDEN),
    "self_attn.v_proj": (KV * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def random_words(rng: np.random.Generator, *shape: int) -> NDArray[np.int32]:
    return rng.integers(-(1 << 31), 1 << 31, shape, np.int64).astype(np.int32)


def make_gptq(rng: np.random.Generator, name: str, n: int, k: int) -> Tensors:
    groups = k // GROUP
    return {
        f"{name}.qweight": ("I32", random_words(rng, k // 8, n)),
        f"{name}.qzeros": ("I32", np.full((groups, n // 8), 0x77777777, np.int32)),
        f"{name}.scales": ("F16", np.full((groups, n), 0.01, np.float16)),
        f"{name}.g_idx": ("I32", (np.arange(k) // GROUP).astype(np.int32)),
    }


def make_awq(rng: np.random.Generator, name: str, n: int, k: int) -> Tensors:
    groups = k // GROUP
    return {
        f"{name}.qweight": ("I32", random_words(rng, k, n // 8)),
        f"{name}.qzeros": ("I32", random_words(rng, groups, n // 8)),
        f"{name}.scales": ("F16", np.full((groups, n), 0.01, np.float16)),
    }


def make_nf4(rng: np.random.Generator, name: str, n: int, k: int) -> Tensors:
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [n, k]}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    weight = f"{name}.weight"
    return {
        weight: ("U8", rng.integers(0, 256, (n * k // 2, 1), np.uint8)),
        f"{weight}.absmax": ("F32", np.full(n * k // BLOCK, 0.05, np.float32)),
        f"{weight}.quant_map": ("F32", np.array(NF4, np.float32)),
        f"{weight}.quant_state.bitsandbytes__nf4": ("U8", text),
    }


def make_fp8(rng: np.random.Generator, name: str, n: int, k: int) -> Tensors:
    codes = rng.integers(0, 256, (n, k), np.uint8) & 0xBF  # no code that is not a number
    scales = np.full((n // 128, k // 128), 0.01, np.float32)
    return {f"{name}.weight": ("F8_E4M3", codes), f"{name}.weight_scale_inv": ("F32", scales)}


def make_w8a8(rng: np.random.Generator, name: str, n: int, k: int) -> Tensors:
    codes = rng.integers(-127, 128, (n, k), np.int8)
    return {
        f"{name}.weight": ("I8", codes),
        f"{name}.weight_scale": ("F32", np.full((n, 1), 0.0005, np.float32)),
    }


def make_bf16(rng: np.random.Generator, name: str, n: int, k: int) -> Tensors:
    return {f"{name}.weight": ("BF16", random_halves(rng, n, k))}


def random_halves(rng: np.random.Generator, *shape: int) -> NDArray[np.uint16]:
    values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
W8A8 = {
    "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {**INT8, "strategy": "channel", "dynamic": False},
        "input_activations": {**INT8, "strategy": "token", "dynamic": True},
    }},
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False}
AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
}  # fmt: skip
BNB = {
    "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_use_double_quant": False,
}  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FORMATS: dict[str, tuple[Callable[..., Tensors], dict[str, object] | None]] = {
    "gptq": (make_gptq, GPTQ),
    "awq": (make_awq, AWQ),
    "nf4": (make_nf4, BNB),
    "fp8": (make_fp8, FP8),
    "w8a8": (make_w8a8, W8A8),
    "bf16": (make_bf16, None),
}


def list_tensors(rng: np.random.Generator, make: Callable[..., Tensors]) -> Iterator[Tensors]:
    ones = np.full(HIDDEN, 0x3F80, np.uint16)
    yield {"model.embed_tokens.weight": ("BF16", random_halves(rng, VOCAB, HIDDEN))}
    yield {"model.norm.weight": ("BF16", ones)}
    for layer in range(LAYERS):
        where = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield {f"{where}.{norm}.weight": ("BF16", ones)}
        for norm in ("q_norm", "k_norm"):
            yield {f"{where}.self_attn.{norm}.weight": ("BF16", ones[:HEAD])}
        for name, (n, k) in MATRICES.items():
            yield make(rng, f"{where}.{name}", n, k)


def write_safetensors(path: Path, tensors: Tensors) -> None:
    header, end = {}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": values.shape,
            "data_offsets": (end, end + values.nbytes),
        }
        end += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def write_folder(folder: Path, form: str) -> None:
    make, quantization = FORMATS[form]
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV,
        "head_dim": HEAD, "intermediate_size": INNER, "vocab_size": VOCAB, "hidden_act": "silu",
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": True, "attention_bias": False, "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if quantization:
        config["quantization_config"] = quantization
    vocabulary = {f"t{i}": i for i in range(VOCAB)}
    tokenizer = {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    found: Tensors = {}
    for tensors in list_tensors(np.random.default_rng(0), make):
        found |= tensors
    write_safetensors(folder / "model.safetensors", found)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--formats", default=",".join(FORMATS))
    given = parser.parse_args()
    for form in given.formats.split(","):
        folder = given.out / form
        if not (folder / "config.json").exists():
            print(f"writing {folder}", flush=True)
            write_folder(folder, form)


if __name__ == "__main__":
    main()
