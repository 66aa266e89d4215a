"""What a GPU runs for codes in bfloat16, on the CPU: its inline assembly in NumPy (ptx.py)."""

import numpy as np
import ptx
import pytest
import torch
from op_cases import EPS, normal, within

from flyweight.ops.base import from_bf16_bits, to_bf16_bits
from flyweight.ops.cuda import linear as products
from flyweight.ops.cuda import weights
from flyweight.ops.cuda.kernels import gemm, gemm_open
from flyweight.ops.reference import ReferenceOps
from grouped_weights import GGUF, random_formed, random_grouped, reach

CODES = (
    "q4_0", "q4_1", "q2_k", "q3_k", "q4_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "u2_g64",
    "u3_g128_bf16", "u4_g128", "u4_g64_bf16_min", "s4_g64", "s4_g128", "nf4_g64_f32", "fp4_g128",
    "e4m3_rows", "e5m2_rows", "nvfp4_rows",
)  # fmt: skip
EXACT = ("e4m3_rows", "e5m2_rows")  # their weights are not rounded, only the sums


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    if device != "cpu":
        pytest.skip("a GPU runs this in the tests of linear")
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", ptx.create_inline_asm)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", ptx.create_dot)
    for module in (gemm, gemm_open):
        monkeypatch.setattr(module, "INTERPRETED", tl.constexpr(False))


@pytest.mark.parametrize("kind", CODES)
def test_words_are_opened(kind: str) -> None:
    rng, k = np.random.default_rng(3), 512
    piece = (random_grouped if kind in GGUF else random_formed)(rng, kind, 40, k)
    x = from_bf16_bits(to_bf16_bits(normal(rng, 3, k)))
    w = weights.pack((40, k), [piece], None, torch.device("cpu"))
    got = products.linear(torch.from_numpy(x), w, "bf16", True).numpy()
    truth = ReferenceOps("bf16").pack((40, k), [piece])
    mass = np.abs(x.astype(np.float64)) @ reach(piece).T
    opened = kind not in EXACT
    within(got, ReferenceOps("bf16").linear(x, truth), (2.0**-8 * opened + 64 * EPS) * mass)
