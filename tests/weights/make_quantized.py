"""Makes tests/data/models-quantized: tiny Llamas, each quantised by a library's own code, with what
the library dequantises them to.

Needs torch, transformers, safetensors, compressed-tensors, gptqmodel, auto-round and autoawq, none
of which the engine or its tests do:

    python tests/weights/make_quantized.py tests/data/models-quantized [NAME ...]

A folder holds the model and expected.npz: `logits` of TOKENS by transformers in float32 with the
dequantised weights, and for every matrix the first bytes of the SHA-256 of its float32 values.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

TOKENS = [1, 17, 80, 3, 95, 41, 42, 7, 64, 5, 29, 30]
SHAPE = dict(
    vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=1, eos_token_id=0,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1,
)  # fmt: skip
State = dict[str, torch.Tensor]
Packed = tuple[State, torch.Tensor]  # a matrix's tensors by suffix, and what they represent


def scales_of(w: torch.Tensor, group: int, bits: int, sym: bool) -> tuple[torch.Tensor, ...]:
    """Scales and zero points [N, groups] of plain rounding; codes are from 0."""
    rows = w.reshape(len(w), -1, group if group > 0 else w.shape[1])
    most = (1 << bits) - 1
    if sym:
        scale = rows.abs().amax(2).clamp(min=1e-6) * 2 / most
        zero = torch.full_like(scale, 1 << bits - 1)
    else:
        low, high = rows.amin(2).clamp(max=0), rows.amax(2).clamp(min=0)
        scale = (high - low).clamp(min=1e-6) / most
        zero = torch.round(-low / scale).clamp(1, most)
    return scale.half().float(), zero


def linear(w: torch.Tensor) -> torch.nn.Linear:
    found = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    found.weight.data = w.clone()
    return found


def gptqmodel(bits: int, group: int, sym: bool, order: bool = False) -> Callable[..., Packed]:
    """The second version, whose zero points are as they are."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    def pack(w: torch.Tensor, seed: int) -> Packed:
        n, k = w.shape
        size = group if group > 0 else k
        g_idx = torch.arange(k, dtype=torch.int32) // size
        turn = torch.arange(k)
        if order:
            turn = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
            g_idx = g_idx[torch.argsort(turn)]
        scale, zero = scales_of(w[:, turn], group, bits, sym)
        made = TorchLinear(bits, group, sym, order, k, n)
        made.pack_original(linear(w), scale, zero, g_idx)
        state = {f".{name}": getattr(made, name) for name in ("qweight", "qzeros", "scales")}
        made.eval()
        made.scales = made.scales.float()
        # its own path for float32, which shifts and masks, then (code - zero) * scale
        values = type(made).__mro__[1].dequantize_weight(made).float().T
        return state | {".g_idx": g_idx}, values

    return pack


def auto_round(bits: int, group: int, sym: bool, module: str) -> Callable[..., Packed]:
    """AutoRound's packers: qlinear_torch_zp stores zero points less 1, as AutoGPTQ."""
    from importlib import import_module

    layer = import_module(f"auto_round_extension.torch.{module}").QuantLinear

    def pack(w: torch.Tensor, seed: int) -> Packed:
        n, k = w.shape
        scale, zero = scales_of(w, group, bits, sym)
        made = layer(bits, group, k, n, bias=False)
        made.device = torch.device("cpu")  # which one of its paths asks for
        made.pack(linear(w), scale, zero)
        state = {f".{name}": getattr(made, name) for name in ("qweight", "qzeros", "scales")}
        made.scales = made.scales.float()
        return state, made(torch.eye(k)).T

    return pack


def awq(group: int) -> Callable[..., Packed]:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    def pack(w: torch.Tensor, seed: int) -> Packed:
        scale, zero = scales_of(w, group, 4, False)
        scale, zero = scale.T.contiguous(), zero.T.contiguous()
        codes = (w.T / scale.repeat_interleave(group, 0)).round() + zero.repeat_interleave(group, 0)
        exact = (codes.clamp(0, 15) - zero.repeat_interleave(group, 0)) * scale.repeat_interleave(
            group, 0
        )
        made = WQLinear_GEMM.from_linear(linear(exact.T), 4, group, scales=scale, zeros=zero)
        state = {f".{name}": getattr(made, name) for name in ("qweight", "qzeros", "scales")}
        return state, dequantize_gemm(made.qweight, made.qzeros, made.scales.float(), 4, group).T

    return pack


def compressed(weights: dict, form: str, extra: State | None = None) -> Callable[..., Packed]:
    """compressed-tensors' own compressor of a format."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)

    def pack(w: torch.Tensor, seed: int) -> Packed:
        strategy, group = args.strategy, args.group_size or 0
        state: State = {"weight": w}
        if strategy == "tensor":
            low, high = w.min().reshape(1), w.max().reshape(1)
        elif strategy == "block":
            tall, wide = args.block_structure
            padded = torch.nn.functional.pad(w, (0, 0, 0, -len(w) % tall))
            blocks = padded.reshape(-1, tall, w.shape[1] // wide, wide)
            low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        else:
            rows = w.reshape(len(w), -1, group if group > 0 else w.shape[1])
            low, high = rows.amin(2), rows.amax(2)
        one = None
        if strategy == "tensor_group":
            one = state["weight_global_scale"] = generate_gparam(w.min(), w.max())
        scale, zero = calculate_qparams(low, high, args, global_scale=one)
        state["weight_scale"] = scale.to(torch.float32 if one is not None else torch.bfloat16)
        if not args.symmetric:
            state["weight_zero_point"] = zero
        made = compressor.compress(state, scheme)
        if form.startswith("nvfp4"):  # whose own way rounds to bfloat16
            packed = made["weight_packed"]
            values = dequantize(
                unpack_fp4_from_uint8(packed, len(packed), w.shape[1], torch.float32),
                made["weight_scale"].float(), args=args, dtype=torch.float32,
                global_scale=made["weight_global_scale"],
            )  # fmt: skip
            return {f".{name}": t for name, t in made.items()}, values
        wide_state = {
            name: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t
            for name, t in made.items()
        }
        values = compressor.decompress(wide_state, scheme)["weight"].float()
        return {f".{name}": t for name, t in {**made, **(extra or {})}.items()}, values

    return pack


def ct_config(form: str, weights: dict, **more: object) -> dict:
    """A config of one group, of the fields that the library writes."""
    scheme = {"targets": ["Linear"], "weights": {"dynamic": False, **weights}, **more}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": scheme},
    }  # fmt: skip


def gptq_config(bits: int, group: int, sym: bool, **more: object) -> dict:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym,
            "desc_act": False, **more}  # fmt: skip


INT4 = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)
INT4_ASYM = dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=64)
INT8 = dict(num_bits=8, type="int", symmetric=True, strategy="channel")
FLOAT8 = dict(num_bits=8, type="float", symmetric=True, strategy="channel")
FLOAT8_ONE = dict(num_bits=8, type="float", symmetric=True, strategy="tensor")
FLOAT8_BLOCK = dict(
    num_bits=8, type="float", symmetric=True, strategy="block", block_structure=[64, 64]
)
E4M3 = "torch.float8_e4m3fn"
FLOAT4 = dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16,
              scale_dtype=E4M3, zp_dtype=E4M3)  # fmt: skip
MX4 = dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32,
           scale_dtype="torch.uint8", zp_dtype="torch.uint8")  # fmt: skip
STATIC = dict(num_bits=8, type="int", symmetric=True, strategy="tensor", dynamic=False)
TOKEN = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
INPUT = {"input_scale": torch.tensor([0.03])}

V1 = "qlinear_torch_zp"
NVFP4, MXFP4 = "nvfp4-pack-quantized", "mxfp4-pack-quantized"
FOLDERS: dict[str, tuple[dict, Callable[[], Callable[..., Packed]]]] = {
    "gptq-4": (gptq_config(4, 64, True), lambda: auto_round(4, 64, True, V1)),
    "gptq-4-asym": (gptq_config(4, 64, False), lambda: auto_round(4, 64, False, V1)),
    "gptq-4-order": (
        gptq_config(4, 32, False, desc_act=True, checkpoint_format="gptq_v2"),
        lambda: gptqmodel(4, 32, False, order=True),
    ),
    "gptq-3": (
        gptq_config(3, 128, False, checkpoint_format="gptq_v2"), lambda: gptqmodel(3, 128, False)
    ),
    "gptq-2": (gptq_config(2, 32, True), lambda: auto_round(2, 32, True, V1)),
    "gptq-8": (gptq_config(8, -1, True), lambda: auto_round(8, -1, True, V1)),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        lambda: awq(64),
    ),
    "auto-round": (
        {"quant_method": "auto-round", "packing_format": "auto_round", "bits": 4, "group_size": 128,
         "sym": True, "data_type": "int", "autoround_version": "0.16.1"},
        lambda: auto_round(4, 128, True, "qlinear_torch"),
    ),
    "ct-w4a16": (ct_config("pack-quantized", INT4), lambda: compressed(INT4, "pack-quantized")),
    "ct-w4a16-asym": (
        ct_config("pack-quantized", INT4_ASYM), lambda: compressed(INT4_ASYM, "pack-quantized")
    ),
    "ct-w8a16": (ct_config("pack-quantized", INT8), lambda: compressed(INT8, "pack-quantized")),
    "ct-w8a8": (
        ct_config("int-quantized", INT8, input_activations=TOKEN),
        lambda: compressed(INT8, "int-quantized"),
    ),
    "ct-w8a8-static": (
        ct_config("int-quantized", INT8, input_activations=STATIC),
        lambda: compressed(INT8, "int-quantized", INPUT),
    ),
    "ct-fp8": (ct_config("float-quantized", FLOAT8), lambda: compressed(FLOAT8, "float-quantized")),
    "ct-fp8-tensor": (
        ct_config("float-quantized", FLOAT8_ONE), lambda: compressed(FLOAT8_ONE, "float-quantized")
    ),
    "ct-fp8-block": (
        ct_config("float-quantized", FLOAT8_BLOCK),
        lambda: compressed(FLOAT8_BLOCK, "float-quantized"),
    ),
    "ct-nvfp4": (ct_config(NVFP4, FLOAT4), lambda: compressed(FLOAT4, NVFP4)),
    "ct-mxfp4": (ct_config(MXFP4, MX4), lambda: compressed(MX4, MXFP4)),
}  # fmt: skip
WIDE = ("gptq-3", "auto-round")  # whose groups are of 128
MIXTURES = ("awq",)  # also made as a mixture of experts


@torch.no_grad()
def make(out: Path, name: str, mixture: bool) -> None:
    config, packer = FOLDERS[name.removesuffix("-moe")]
    pack = packer()
    torch.manual_seed(sum(name.encode()))
    if mixture:
        model = MixtralForCausalLM(
            MixtralConfig(**SHAPE | {"intermediate_size": 64},
                          num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
        )  # fmt: skip
    else:
        shape = SHAPE | ({"hidden_size": 128} if name in WIDE else {})
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=name == "awq"))
    for weight in model.parameters():
        spread = 0.1 if weight.dim() > 1 else 0.2
        weight.copy_(torch.randn_like(weight) * spread + (weight.dim() == 1))
        weight.copy_(weight.bfloat16().float())
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    sums, tensors = {}, {}
    for i, (key, weight) in enumerate(published(model).items()):
        if ("proj" in key or ".experts." in key) and weight.dim() == 2:
            state, values = pack(weight, i)
            tensors |= {
                key.removesuffix(".weight") + end: t.clone().contiguous()
                for end, t in state.items()
            }
            values = values.contiguous() + 0.0  # of two zeros the positive one
            sums[key] = hashlib.sha256(values.numpy().tobytes()).digest()[:8]
            weight.copy_(values)
        else:
            tensors[key] = weight.detach().bfloat16().contiguous()
    save_file(tensors, folder / "model.safetensors")
    held = model.config.to_dict()
    also = ("rms_norm_eps", "tie_word_embeddings", "model_type", "num_local_experts")
    kept = {k: held[k] for k in (*SHAPE, *also, "num_experts_per_tok") if k in held}
    kept |= {
        "rope_theta": 1e6 if mixture else 1e4,
        "torch_dtype": "bfloat16",
        "quantization_config": config,
    }
    (folder / "config.json").write_text(json.dumps(kept, indent=1))
    logits = {"logits": model(torch.tensor([TOKENS])).logits[0].numpy()}
    if name.endswith("static"):  # int8 activations with the scale of the file
        for key, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and key != "lm_head":
                module.register_forward_pre_hook(
                    lambda _, given: (
                        torch.fake_quantize_per_tensor_affine(given[0], 0.03, 0, -127, 127),
                    )
                )
        logits["logits rounded"] = model(torch.tensor([TOKENS])).logits[0].numpy()
    names = sorted(sums)
    np.savez_compressed(
        folder / "expected.npz",
        **logits,
        names=np.array(names),
        sums=np.stack([np.frombuffer(sums[key], np.uint8) for key in names]),
    )
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size} bytes")


def published(model: torch.nn.Module) -> State:
    """The model's tensors by the names of published files; experts one by one, as views."""
    found: State = {}
    for key, weight in model.named_parameters():
        if key.endswith("experts.gate_up_proj"):
            stem = key.removesuffix("mlp.experts.gate_up_proj") + "block_sparse_moe.experts."
            for e, both in enumerate(weight):
                found[f"{stem}{e}.w1.weight"], found[f"{stem}{e}.w3.weight"] = both.chunk(2)
        elif key.endswith("experts.down_proj"):
            stem = key.removesuffix("mlp.experts.down_proj") + "block_sparse_moe.experts."
            found |= {f"{stem}{e}.w2.weight": one for e, one in enumerate(weight)}
        else:
            found[key.replace("mlp.gate.weight", "block_sparse_moe.gate.weight")] = weight
    return found


def main() -> None:
    out = Path(sys.argv[1])
    wanted = sys.argv[2:] or [*FOLDERS, *(f"{name}-moe" for name in MIXTURES)]
    for name in wanted:
        make(out, name, name.endswith("-moe"))


if __name__ == "__main__":
    main()
