"""Makes tiny Llamas that bitsandbytes, transformers, hqq and torchao have quantised, and what those
libraries make of them.

    python tests/weights/make_library_folders.py OUT_DIR [NAME ...]

Needs torch, transformers, bitsandbytes, peft, hqq, torchao.  Under OUT_DIR/NAME lie the folder as
the library writes it, and expected.npz: a prompt, its logits by a float32 model of the weights that
the library dequantises, and of every such weight the hash of its float32 values, or `values NAME`.

Where a library has no writer that runs on this machine, its published layout is written here and
the entry of `MAKERS` says so.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_llama import build, draw_prompt, list_linears
from transformers import BitsAndBytesConfig, LlamaForCausalLM

Weights = dict[str, torch.Tensor]
Made = tuple[Weights, dict[str, Any], dict[str, str]]  # tensors, quantization_config, metadata


# --- bitsandbytes ---


def write_bitsandbytes(model: LlamaForCausalLM, out: Path, **settings: Any) -> Weights:
    """Through transformers, which calls bitsandbytes; values by bitsandbytes' dequantiser in
    Python: that for processors goes wrong where blocks run on from row to row.
    """
    import bitsandbytes.functional as bnb
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

    with tempfile.TemporaryDirectory() as plain:
        model.save_pretrained(plain)
        config = BitsAndBytesConfig(**settings)
        found = LlamaForCausalLM.from_pretrained(
            plain, quantization_config=config, device_map="cpu"
        )
    found.save_pretrained(out)
    if settings.get("bnb_4bit_use_double_quant"):
        write_adapter(found, out)
    values = {}
    for name, linear in list_linears(found).items():
        weight = linear.weight
        if settings.get("load_in_8bit"):
            values[name] = bnb.int8_vectorwise_dequant(weight.data, weight.SCB)
            continue
        state = weight.quant_state
        absmax = state.absmax
        if state.nested:
            absmax = bnb.dequantize_blockwise(absmax, state.state2) + state.offset
        codes = weight.data.reshape(-1).view(torch.uint8)
        values[name] = _dequantize_4bit_compute.__wrapped__(
            codes, absmax, state.code, state.blocksize, state.shape, torch.float32
        )
    return values


def write_adapter(model: LlamaForCausalLM, out: Path) -> None:
    """A LoRA adapter on the quantised model (QLoRA) by PEFT, and the logits with it."""
    from peft import LoraConfig, get_peft_model

    for tensor in model.parameters():
        if tensor.is_floating_point():
            tensor.data = tensor.data.float()
    for linear in list_linears(model).values():
        linear.support_avx512bf16_for_cpu = False  # which would round, and store in another order
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
    adapted = get_peft_model(model, config).eval()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            if "lora_" in name:
                x = rng.standard_normal(tuple(tensor.shape)).astype(np.float32)
                tensor.copy_(torch.from_numpy(x / np.sqrt(tensor.shape[-1])))
        logits = adapted(torch.from_numpy(draw_prompt())[None]).logits[0].numpy()
    adapted.save_pretrained(out / "adapter")
    np.savez_compressed(out / "adapter" / "expected.npz", logits=logits)
    adapted.unload()
    file = out / "adapter" / "adapter_config.json"
    written = json.loads(file.read_text()) | {"base_model_name_or_path": out.name}
    written["target_modules"].sort()
    file.write_text(json.dumps(written, indent=2) + "\n")


def bitsandbytes(**settings: Any) -> Callable[[LlamaForCausalLM, Path], Weights]:
    return lambda model, out: write_bitsandbytes(model, out, **settings)


NF4 = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


# --- 8-bit floats ---


def quantise_by_transformers(model: LlamaForCausalLM, **settings: Any) -> tuple[Made, Weights]:
    """transformers' own operations, which need no GPU, though its loader asks for one."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = {"activation_scheme": "dynamic", "weight_block_size": [128, 128], **settings}
    requested = SimpleNamespace(
        quantization_config=SimpleNamespace(**{"scale_fmt": "float", **config})
    )
    tensors, values = model.state_dict(), {}
    for name, linear in list_linears(model).items():
        key = f"{name}.weight"
        made = Fp8Quantize(requested).convert({key: linear.weight.data})
        scale = made[f"{name}.weight_scale_inv"]
        scale = scale if config["weight_block_size"] else scale.reshape(())
        grid = scale if config["weight_block_size"] else scale.reshape(1, 1)
        values[name] = Fp8Dequantize(requested)._dequantize_one(made[key], grid, torch.float32)
        tensors |= {key: made[key], f"{name}.weight_scale_inv": scale}
        if config["activation_scheme"] == "static":
            tensors[f"{name}.activation_scale"] = torch.tensor(0.02)
    return (tensors, {"quant_method": "fp8", "fmt": "e4m3", **config}, {}), values


def write_rows(model: LlamaForCausalLM) -> tuple[Made, Weights]:
    """FBGEMM's layout, written here: a scale a row."""
    tensors, values = model.state_dict(), {}
    for name, linear in list_linears(model).items():
        weight = linear.weight.data.float()
        scale = (weight.abs().amax(dim=1, keepdim=True) / 448).float()
        codes = (weight / scale).to(torch.float8_e4m3fn)
        tensors |= {f"{name}.weight": codes, f"{name}.weight_scale": scale}
        values[name] = codes.float() * scale
    config = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    return (tensors, config, {}), values


def write_tensors(model: LlamaForCausalLM) -> tuple[Made, Weights]:
    """AutoFP8's layout, written here: a scale a matrix, static activations, of the K/V cache."""
    tensors, values = model.state_dict(), {}
    for name, linear in list_linears(model).items():
        weight = linear.weight.data.float()
        kind = torch.float8_e5m2 if "up_proj" in name else torch.float8_e4m3fn
        scale = weight.abs().max() / torch.finfo(kind).max
        codes = (weight / scale).to(kind)
        tensors |= {f"{name}.weight": codes, f"{name}.weight_scale": scale}
        tensors[f"{name}.input_scale"] = torch.tensor(0.02)
        if name.endswith("k_proj"):
            tensors[name.removesuffix("k_proj") + "k_scale"] = torch.tensor(0.5)
        values[name] = codes.float() * scale
    return (tensors, {"quant_method": "fp8", "activation_scheme": "static"}, {}), values


# --- hqq ---


def quantise_by_hqq(model: LlamaForCausalLM, **settings: Any) -> tuple[Made, Weights]:
    """Its layers' state_dict, which is what transformers and hqq save."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    tensors, values = model.state_dict(), {}
    plain = {"nbits": 4, "group_size": 64, "axis": 1, **settings}
    config = BaseQuantizeConfig(**plain)
    for name, linear in list_linears(model).items():
        layer = HQQLinear(
            linear,
            config,
            compute_dtype=torch.float16,
            device="cpu",
            del_orig=False,
        )
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{k}": v for k, v in layer.state_dict().items() if v is not None}
        layer.meta = {
            k: v.float() if isinstance(v, torch.Tensor) else v for k, v in layer.meta.items()
        }
        layer.meta["compute_dtype"] = torch.float32
        values[name] = layer.dequantize()
    written = {"weight_quant_params": plain, "scale_quant_params": None, "zero_quant_params": None}
    return (tensors, {"quant_method": "hqq", "quant_config": written}, {}), values


# --- torchao ---


def quantise_by_torchao(model: LlamaForCausalLM, config: Any) -> tuple[Made, Weights]:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    kept = list_linears(model)
    if callable(config):
        for linear in kept.values():
            linear.weight = torch.nn.Parameter(config(linear.weight.data), requires_grad=False)
    else:
        quantize_(model, config, filter_fn=lambda module, name: name in kept)
    state = {
        k: v.data if isinstance(v, torch.nn.Parameter) else v for k, v in model.state_dict().items()
    }
    tensors, metadata = flatten_tensor_state_dict(state)
    values = {name: dequantise(linear.weight.data) for name, linear in kept.items()}
    kind = {"default": {"_type": type(next(iter(kept.values())).weight.data).__name__}}
    return (tensors, {"quant_method": "torchao", "quant_type": kind}, metadata), values


def dequantise(weight: Any) -> torch.Tensor:
    """By torchao, in float32.  Of Int4Tensor it has no dequantiser: by its description."""
    from torchao.quantization.quant_primitives import dequantize_affine

    kind = type(weight).__name__
    if kind == "Float8Tensor":
        return weight.dequantize(torch.float32)
    if kind == "Int4Tensor":
        low, high = (weight.qdata << 4) >> 4, weight.qdata >> 4
        codes = torch.stack((low, high), dim=-1).reshape(weight.shape).float()
        group = weight.block_size[1]
        scale, zero = (
            x.float().T.repeat_interleave(group, 1) for x in (weight.scale, weight.zero_point)
        )
        return codes * scale + zero
    block, scale, point = tuple(weight.block_size), weight.scale.float(), weight.zero_point
    return dequantize_affine(weight.qdata, block, scale, point, torch.int8)


def make_int4(weight: torch.Tensor, group: int = 32) -> Any:
    """MSLK's int4_row_quantize_zp and pack_int4, which need a GPU, written here."""
    from torchao.quantization import Int4Tensor

    runs = weight.float().reshape(-1, group)
    low, high = runs.amin(1, keepdim=True), runs.amax(1, keepdim=True)
    scale = (high - low).clamp(min=1e-6) / 15
    codes = ((runs - low) / scale).round().clamp(0, 15) - 8
    codes = codes.to(torch.int8).reshape(weight.shape)
    packed = (codes[:, 1::2] << 4) | (codes[:, ::2] & 15)
    held = [
        x.reshape(len(weight), -1).t().contiguous().to(weight.dtype)
        for x in (scale, low + 8 * scale)
    ]
    return Int4Tensor(packed.contiguous(), *held, [1, group], weight.shape)


def torchao(
    name: str, group: int = 0, **settings: Any
) -> Callable[[LlamaForCausalLM], tuple[Made, Weights]]:
    def made(model: LlamaForCausalLM) -> tuple[Made, Weights]:
        import torchao.quantization as ao

        extra = {"granularity": ao.PerGroup(group)} if group else {}
        return quantise_by_torchao(model, getattr(ao, name)(**settings, **extra))

    return made


MAKERS: dict[str, Any] = {
    "bnb-nf4": bitsandbytes(**NF4),
    "bnb-nf4-double": bitsandbytes(**NF4, bnb_4bit_use_double_quant=True),
    "bnb-nf4-odd": bitsandbytes(**NF4),
    "bnb-fp4": bitsandbytes(
        load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage="bfloat16"
    ),
    "bnb-int8": bitsandbytes(load_in_8bit=True),
    "fp8-block": quantise_by_transformers,
    "fp8-tensor": lambda m: quantise_by_transformers(
        m, weight_block_size=None, activation_scheme="static"
    ),
    "fp8-power": lambda m: quantise_by_transformers(
        m, weight_block_size=[32, 32], scale_fmt="ue8m0"
    ),
    "fp8-rows": write_rows,
    "fp8-static": write_tensors,
    **{f"hqq-{b}": (lambda m, b=b: quantise_by_hqq(m, nbits=b)) for b in (1, 2, 3, 4, 6, 8)},
    "hqq-columns": lambda m: quantise_by_hqq(m, axis=0),
    "hqq-wide": lambda m: quantise_by_hqq(m, nbits=3, group_size=128),
    "torchao-int8": torchao("Int8WeightOnlyConfig"),
    "torchao-int8-dynamic": torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao-int8-group": torchao("Int8WeightOnlyConfig", group=32),
    "torchao-intx4": torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4, group=32),
    "torchao-int4": lambda m: quantise_by_torchao(m, make_int4),
    "torchao-float8": torchao("Float8WeightOnlyConfig"),
}
SIZES = {
    "bnb-nf4": (64, 64, 2, 2),
    "fp8-block": (128, 256, 4),
    "bnb-nf4-odd": (96, 80, 2),
    "hqq-4": (64, 64, 2, 2),
    "hqq-wide": (64, 128),
}
ORDERED = ("bnb-int8",)  # which takes its products in another order
DENSE = {"bnb-nf4-odd": "down_proj", "hqq-columns": "proj"}  # read as bfloat16, by end of name


def make(name: str, out: Path) -> None:
    torch.manual_seed(0)
    model, folder = build(*SIZES.get(name, ())), out / name
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("bnb"):
        values = MAKERS[name](model, folder)
    else:
        (tensors, config, metadata), values = MAKERS[name](model)
        tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
        save_file(tensors, folder / "model.safetensors", {**metadata, "format": "pt"})
        plain = json.loads(build(*SIZES.get(name, ())).config.to_json_string(use_diff=False))
        (folder / "config.json").write_text(
            json.dumps({**plain, "quantization_config": config}, default=str)
        )
    settle(folder)
    write_expected(name, folder, values)


def sort_header(file: Path) -> None:
    """safetensors writes the header's text in no order."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def settle(folder: Path) -> None:
    """Only what says how the model is computed, in one order."""
    sort_header(folder / "model.safetensors")
    for unused in ("generation_config.json", "adapter/README.md"):
        (folder / unused).unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    kept = (
        "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps",
        "hidden_act", "max_position_embeddings", "tie_word_embeddings", "rope_parameters",
        "quantization_config",
    )  # fmt: skip
    config["architectures"] = ["LlamaForCausalLM"]
    config = {key: config[key] for key in kept if key in config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_expected(name: str, folder: Path, values: Weights) -> None:
    values = {
        linear: weight.bfloat16() if linear.endswith(DENSE.get(name, ".")) else weight
        for linear, weight in values.items()
    }
    model = build(*SIZES.get(name, ()))
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.data = tensor.data.float()
        state = model.state_dict()
        for linear, weight in values.items():
            state[f"{linear}.weight"].copy_(weight)
        prompt = draw_prompt()
        logits = model(torch.from_numpy(prompt)[None]).logits[0].numpy()
    hashes = {linear: find_hash(weight) for linear, weight in values.items()}
    held = {
        f"values {linear}": weight.detach().numpy()
        for linear, weight in values.items()
        if name in ORDERED and linear.endswith("k_proj")
    }
    np.savez_compressed(
        folder / "expected.npz", prompt=prompt, logits=logits, hashes=json.dumps(hashes), **held
    )


def find_hash(weight: torch.Tensor) -> str:
    """Of the float32 values, except for the sign of zeros."""
    return hashlib.sha256((weight.detach().float() + 0.0).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    target, *names = sys.argv[1:]
    for chosen in names or MAKERS:
        print(chosen, flush=True)
        make(chosen, Path(target))
